#!/bin/sh
# Installs the program of this folder: sh install.sh [PREFIX]
# PREFIX/lib/hone and the link PREFIX/bin/hone; default: ~/.local. Needs no root, and changes nothing else.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:-$HOME/.local}
mkdir -p "$prefix/bin" "$prefix/lib/hone"
cp "$here/hone" "$prefix/lib/hone/.hone-new"
mv -f "$prefix/lib/hone/.hone-new" "$prefix/lib/hone/hone" # also while an earlier one runs
if [ -d "$here/lib" ]; then cp -r "$here/lib" "$prefix/lib/hone/"; fi
ln -sfn ../lib/hone/hone "$prefix/bin/hone"
"$prefix/bin/hone" version
case ":$PATH:" in
  *":$prefix/bin:"*) ;;
  *) echo "$prefix/bin is not in PATH: add it, or start $prefix/bin/hone" ;;
esac
