#!/usr/bin/env bash
# Packs the program with its documents and examples: tools/dist.sh BUILD_DIR
set -euo pipefail
build=$1
version=$("$build/hone" version | awk '{print $2}')
name="hone-$version-linux-$(uname -m)"
rm -rf "dist/$name"
mkdir -p "dist/$name"
strip -o "dist/$name/hone" "$build/hone"
cp -r README.md CHANGELOG.md LICENSE docs examples "dist/$name/"
tar -C dist -czf "dist/$name.tar.gz" "$name"
echo "dist/$name.tar.gz"
