#!/bin/sh
# Installs the program of this folder: sh install.sh [PREFIX]
# PREFIX/bin/hone; default: ~/.local. Needs no root, and changes nothing else.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:-$HOME/.local}
mkdir -p "$prefix/bin"
cp "$here/hone" "$prefix/bin/.hone-new"
mv -f "$prefix/bin/.hone-new" "$prefix/bin/hone" # also while an earlier one runs
"$prefix/bin/hone" version
case ":$PATH:" in
  *":$prefix/bin:"*) ;;
  *) echo "$prefix/bin is not in PATH: add it, or start $prefix/bin/hone" ;;
esac
