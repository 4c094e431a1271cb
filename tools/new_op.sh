#!/usr/bin/env bash
# Writes the folder of a new op from the templates in tools/new_op: tools/new_op.sh NAME [ROOT]
# It compiles at once; its tests fail until every FILL IN is filled in. ROOT: a checkout, this one by default.
set -euo pipefail
fail() {
  echo "$1" >&2
  exit 2
}
templates=$(cd "$(dirname "$0")" && pwd)/new_op
name=${1:-}
root=${2:-$(dirname "$0")/..}
[ -n "$name" ] || fail "say what it is called: make new-op NAME=rms_norm"
[[ $name =~ ^[a-z][a-z0-9]*(_[a-z0-9]+)*$ ]] ||
  fail "'$name' is not a name for an op: use lower-case letters, digits and single underscores, as in rms_norm"
[[ ! $name =~ (^|_)(test|testing|bench|module|main|cuda|gpu|absent|amx|avx512|avx2|baseline)$ ]] ||
  fail "'$name' ends in a word that tells the build what a file is: choose another name"
folder=$root/src/ops/$name
[ ! -e "$folder" ] || fail "src/ops/$name exists: choose another name"
camel=$(sed -E 's/(^|_)(.)/\U\2/g' <<<"$name")
mkdir -p "$folder"
for template in "$templates"/op*.in; do
  file=$(basename "$template" .in)
  sed "s/@name@/$name/g; s/@Name@/$camel/g" "$template" >"$folder/$name${file#op}"
done
echo "wrote src/ops/$name: fill in what says FILL IN, then make op OP=$name"
