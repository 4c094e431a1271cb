#!/bin/sh
# Installs the program of this folder: sh install.sh [PREFIX]
# PREFIX/bin/hone, PREFIX/lib/libhone.so and PREFIX/include/hone; default: ~/.local. Needs no root, and changes nothing else.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:-$HOME/.local}
install_file() { # FILE FOLDER: also while an earlier one is in use
  mkdir -p "$2"
  cp "$1" "$2/.$(basename "$1").new"
  mv -f "$2/.$(basename "$1").new" "$2/$(basename "$1")"
}
install_file "$here/hone" "$prefix/bin"
install_file "$here/lib/libhone.so.1" "$prefix/lib"
ln -sfn libhone.so.1 "$prefix/lib/libhone.so"
install_file "$here/include/hone/hone.h" "$prefix/include/hone"
"$prefix/bin/hone" version
case ":$PATH:" in
  *":$prefix/bin:"*) ;;
  *) echo "$prefix/bin is not in PATH: add it, or start $prefix/bin/hone" ;;
esac
