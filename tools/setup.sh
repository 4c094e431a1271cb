#!/usr/bin/env bash
# Installs what a target needs from Debian's packages, and says what it does.
#   tools/setup.sh build   compiler, CMake and libraries
#   tools/setup.sh test    what the tests need besides: googletest, and mpirun, without which its tests are skipped
#   tools/setup.sh lint    clang-format and clang-tidy
#   tools/setup.sh arm     a compiler for 64-bit Arm
#   tools/setup.sh release cpp-httplib's header, for HONE_STATIC, and what make wheel needs
# With root (or sudo without a password) packages are installed; without, it lists what is missing and how to get it.
set -euo pipefail
optional=()
case "${1:-build}" in
  build) packages=(g++ cmake make pkg-config libfmt-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
                   libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libsnappy-dev libbrotli-dev liblz4-dev
                   libcpp-httplib-dev libssl-dev) ;;
  test) packages=(libgtest-dev libgmock-dev)
        optional=(openmpi-bin) ;;
  lint) packages=(clang-format clang-tidy) ;;
  arm) packages=(g++-aarch64-linux-gnu) ;;
  release) packages=(binutils python3) ;;
  *) echo "usage: tools/setup.sh build|test|lint|arm|release" >&2; exit 2 ;;
esac

httplib=$(cd "$(dirname "$0")/.." && pwd)/third_party/httplib
# Distributions have cpp-httplib as a shared library; the source package has it as one header.
fetch_httplib() {
  local folder list
  folder=$(mktemp -d)
  mkdir -p "$folder"/{sources,lists}
  for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    if [ ! -f "$list" ]; then continue; fi
    case $list in
      *.sources) sed 's/^Types:.*/Types: deb-src/' "$list" > "$folder/sources/$(basename "$list")" ;;
      *.list) sed -n 's/^deb /deb-src /p' "$list" > "$folder/sources/$(basename "$list")" ;;
    esac
  done
  echo "fetching cpp-httplib's header into third_party/httplib"
  (cd "$folder"
   apt=(apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$folder/sources"
        -o Dir::State::Lists="$folder/lists" -o APT::Sandbox::User="$(id -un)")
   "${apt[@]}" update && "${apt[@]}" source --download-only cpp-httplib >/dev/null) || {
    rm -rf "$folder"; echo "the source of cpp-httplib could not be fetched" >&2; exit 2
  }
  mkdir -p "$httplib"
  tar -xOf "$folder"/cpp-httplib_*.orig.tar.* --wildcards '*/httplib.h' > "$httplib/httplib.h"
  rm -rf "$folder"
}
if [ "${1:-build}" = release ] && [ ! -s "$httplib/httplib.h" ]; then fetch_httplib; fi

is_missing() { ! dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }
missing=()
for package in "${packages[@]}"; do if is_missing "$package"; then missing+=("$package"); fi; done
wanted=()
for package in "${optional[@]}"; do if is_missing "$package"; then wanted+=("$package"); fi; done
if [ ${#missing[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ]; then exit 0; fi

if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo)
elif [ ${#missing[@]} -eq 0 ]; then
  echo "not installed: ${wanted[*]}. The tests that need it are skipped."
  exit 0
else
  echo "These packages are missing and this user cannot install them: ${missing[*]}" >&2
  echo "Ask an administrator to run: apt-get install ${missing[*]}" >&2
  exit 2
fi
install() {
  echo "installing $*"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
"${as_root[@]}" apt-get update -qq || [ ${#missing[@]} -eq 0 ]
if [ ${#missing[@]} -gt 0 ]; then install "${missing[@]}"; fi
if [ ${#wanted[@]} -gt 0 ] && ! install "${wanted[@]}"; then
  echo "not installed: ${wanted[*]}. The tests that need it are skipped."
fi
