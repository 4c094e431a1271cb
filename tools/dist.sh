#!/usr/bin/env bash
# Packs the program with the libraries it needs, its documents and examples: tools/dist.sh BUILD_DIR
# What stays outside: the C library, and CUDA's own (driver, cuBLASLt), which a GPU machine has.
set -euo pipefail
build=$1
version=$("$build/hone" version | awk '{print $2}')
name="hone-$version-linux-$(uname -m)"
rm -rf "dist/$name"
mkdir -p "dist/$name/lib"
strip -o "dist/$name/hone" "$build/hone"
most=120 # MB
if (("$(stat -c %s "dist/$name/hone")" > most * 1000 * 1000)); then
  echo "dist/$name/hone is larger than $most MB" >&2
  exit 1
fi
programs=("$build/hone")
if [ -f "$build/lib/hone_parquet.so" ]; then
  strip -o "dist/$name/lib/hone_parquet.so" "$build/lib/hone_parquet.so"
  programs+=("$build/lib/hone_parquet.so")
fi
ldd "${programs[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
  grep -vE '/(libc|libm|librt|libdl|libpthread|libcublas.*|libcuda|libnvidia.*)\.so' |
  while read -r library; do cp -L "$library" "dist/$name/lib/"; done
cp -r README.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md docs examples "dist/$name/"
tar -C dist -czf "dist/$name.tar.gz" "$name"
echo "dist/$name.tar.gz"
