#!/usr/bin/env bash
# clang-tidy over the sources that changed since the given commit's parent, or over all with ALL=1.
#   tools/lint.sh BUILD_DIR
set -euo pipefail
build=$1
[ -f "$build/compile_commands.json" ] || cmake -S . -B "$build" -DHONE_TESTS=ON >/dev/null
if [ "${ALL:-0}" = 1 ] || ! git rev-parse HEAD~1 >/dev/null 2>&1; then
  mapfile -t files < <(git ls-files 'src/*.cpp')
else
  mapfile -t files < <(git diff --name-only --diff-filter=d HEAD~1 -- 'src/*.cpp')
fi
[ ${#files[@]} -eq 0 ] && { echo "no changed sources"; exit 0; }
# The compile commands are for g++, whose warnings clang does not all know.
clang-tidy --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option "${files[@]}"
