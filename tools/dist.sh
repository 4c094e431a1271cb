#!/usr/bin/env bash
# Packs the program, the library, documents and examples: tools/dist.sh BUILD_DIR
# A build with HONE_STATIC needs the C library alone. What stays outside: CUDA's own (driver, cuBLASLt, NCCL), which a GPU
# machine has (docs/install.md).
set -euo pipefail
build=$1
version=$("$build/hone" version | awk '{print $2}')
name="hone-$version-linux-$(uname -m)"
folder="dist/$name"
rm -rf "$folder"
mkdir -p "$folder"
mkdir "$folder/lib" "$folder/include"
strip -o "$folder/hone" "$build/hone"
strip -o "$folder/lib/libhone.so.1" "$build/libhone.so.1"
most=120 # MB
if (("$(stat -c %s "$folder/lib/libhone.so.1")" > most * 1000 * 1000)); then
  echo "$folder/lib/libhone.so.1 is larger than $most MB" >&2
  exit 1
fi
ln -s libhone.so.1 "$folder/lib/libhone.so"
cp -r include/hone "$folder/include/"
for part in "$folder/hone" "$folder/lib/libhone.so.1"; do python3 tools/wheel.py --check "$part"; done
cp tools/install.sh README.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md "$folder/"
python3 tools/wheel.py --notice > "$folder/NOTICE"
cp -r docs examples "$folder/"
tar -C dist -czf "dist/$name.tar.gz" "$name"
echo "dist/$name.tar.gz"
