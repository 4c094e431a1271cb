#!/usr/bin/env bash
# Packs the program, its documents and examples: tools/dist.sh BUILD_DIR
# A build with HONE_STATIC needs the C library alone. What stays outside: CUDA's own (driver, cuBLASLt, NCCL), which a GPU
# machine has (docs/install.md).
set -euo pipefail
build=$1
version=$("$build/hone" version | awk '{print $2}')
name="hone-$version-linux-$(uname -m)"
folder="dist/$name"
rm -rf "$folder"
mkdir -p "$folder"
strip -o "$folder/hone" "$build/hone"
most=120 # MB
if (("$(stat -c %s "$folder/hone")" > most * 1000 * 1000)); then
  echo "$folder/hone is larger than $most MB" >&2
  exit 1
fi
if readelf -d "$folder/hone" | grep NEEDED | grep -vE '\[(libc|libm|ld-linux-x86-64)\.so'; then
  echo "$folder/hone is linked with libraries that other machines may lack: build with -DHONE_STATIC=ON" >&2
  exit 1
fi
cp tools/install.sh README.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md "$folder/"
python3 tools/wheel.py --notice > "$folder/NOTICE"
cp -r docs examples "$folder/"
tar -C dist -czf "dist/$name.tar.gz" "$name"
echo "dist/$name.tar.gz"
