#!/usr/bin/env bash
# Packs the program, its documents and examples: tools/dist.sh BUILD_DIR
# A build with HONE_STATIC needs the C library alone. What stays outside: CUDA's own (driver, cuBLASLt, NCCL), which a GPU
# machine has (docs/install.md). The module for Parquet, if it was built, is in `lib` with Arrow.
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
python3 tools/wheel.py --check "$folder/hone"
if [ -f "$build/lib/hone_parquet.so" ]; then
  mkdir "$folder/lib"
  strip -o "$folder/lib/hone_parquet.so" "$build/lib/hone_parquet.so"
  ldd "$build/lib/hone_parquet.so" | awk '$2 == "=>" && $3 ~ /(arrow|parquet)/ { print $3 }' |
    while read -r library; do cp -L "$library" "$folder/lib/"; done
fi
cp tools/install.sh README.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md "$folder/"
python3 tools/wheel.py --notice > "$folder/NOTICE"
cp -r docs examples "$folder/"
tar -C dist -czf "dist/$name.tar.gz" "$name"
echo "dist/$name.tar.gz"
