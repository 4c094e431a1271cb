#!/usr/bin/env bash
# Installs what a target needs from Debian's packages, and says what it does.
#   tools/setup.sh build   compiler, CMake and libraries
#   tools/setup.sh lint    clang-format and clang-tidy
# With root (or sudo without a password) packages are installed; without, it lists what is missing and how to get it.
set -euo pipefail
case "${1:-build}" in
  build) packages=(g++ cmake make pkg-config libfmt-dev libspdlog-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
                   libpcre2-dev libutf8proc-dev libgtest-dev libgmock-dev libbenchmark-dev) ;;
  lint) packages=(clang-format clang-tidy) ;;
  *) echo "usage: tools/setup.sh build|lint" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo)
else
  echo "These packages are missing and this user cannot install them: ${missing[*]}" >&2
  echo "Ask an administrator to run: apt-get install ${missing[*]}" >&2
  exit 2
fi
echo "installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
