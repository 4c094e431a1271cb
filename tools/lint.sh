#!/usr/bin/env bash
# The words of messages, and clang-tidy over the sources that changed since the given commit's parent, or over all with ALL=1.
#   tools/lint.sh BUILD_DIR
set -euo pipefail
build=$1
# Words of messages, comments and pages. says PATTERN WHAT_TO_SAY [EXCEPTIONS], in `files`.
says() { ! git grep -nE "$1" -- "${files[@]}" | grep -vE "${3:-^$}" || { echo "say $2"; exit 1; }; }
files=('src/*.cpp' 'src/*.h' 'src/*.cu')
says '"[^"]*\b(is|are) no [a-z]' "'is not a …'" 'there (is|are) no|is no longer|src/config/run_config.h|src/core/cpu/numa.h'
says '"[^"]*\bbehind (the|it|a|an)\b' "'after'" '_test.cpp'
says '"[^"]*\b(mend|whoever|wherever)\b' "'fix', and who or where it is"
files+=('tests/*.cpp' 'tests/*.h' 'include/*.h')
says '(///? Of |///< of |[^ /] +// of )' "what it is, not whose: '///< rows in the file', not '///< of the file'"
files=('src/*.cpp' 'src/*.h' 'src/*.cu' 'docs/*.md' README.md CONTRIBUTING.md)
says '\bone behind (the|an)other\b' "'one after another'"
says '\b(first|second|left|right) factor\b' "'operand' for what a product multiplies"
says '\bdo(es)? not mind\b' "what happens instead"
files=('docs/*.md' README.md CONTRIBUTING.md)
says '\bbehind (the|it|a|an)\b' "'after'"
# With the headers as sources include them, since clang reads no headers that g++ precompiled, and the command of each
# source: unity builds have those of a few files that include the others.
cmake -S . -B "$build" -DHONE_TESTS=ON -DHONE_PCH=OFF -DHONE_UNITY=OFF >/dev/null
if [ "${ALL:-0}" = 1 ] || ! git rev-parse HEAD~1 >/dev/null 2>&1; then
  mapfile -t files < <(git ls-files 'src/*.cpp')
else
  mapfile -t files < <(git diff --name-only --diff-filter=d HEAD~1 -- 'src/*.cpp')
fi
[ ${#files[@]} -eq 0 ] && { echo "no changed sources"; exit 0; }
# The compile commands are for g++, whose warnings clang does not all know.
printf '%s\0' "${files[@]}" |
  xargs -0 -n 2 -P "$(nproc)" clang-tidy --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option
