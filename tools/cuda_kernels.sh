#!/usr/bin/env bash
# Compiles every CUDA source for every architecture of the release, and writes what the kernels take:
#
#   tools/cuda_kernels.sh FOLDER [FILTER]    FILTER: a part of the sources' paths
#
#   FOLDER/sizes.txt      seconds of nvcc, and bytes of code, by source and architecture, with sums
#   FOLDER/registers.txt  by kernel and architecture: registers, static shared memory, spills, threads and the CTAs of a
#                         multiprocessor that registers and threads allow
#
# Needs nvcc and no other package. JOBS: compilations at a time; ARCHITECTURES: as HONE_CUDA_ARCHITECTURES, without
# PTX; NVCC: the compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 filter=${2:-}
jobs=${JOBS:-$(nproc)}
architectures=${ARCHITECTURES:-80 86 89 90a 100 120}
nvcc=${NVCC:-nvcc}
flags='-std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -Isrc -DHONE_CUDA=1'
mkdir -p "$folder"

# One source for one architecture, as nvcc does it in a build: PTX, code, and a compressed container of code.
compile() {
  local source=$1 architecture=$2 name begin
  name=$folder/$(tr / . <<<"${source#src/}").$architecture
  mkdir -p "$name.keep"
  begin=$(date +%s.%N)
  # shellcheck disable=SC2086
  if ! "$nvcc" $flags -gencode "arch=compute_$architecture,code=sm_$architecture" -Xptxas -v --compress-mode=size \
    -fatbin -keep -keep-dir "$name.keep" -o "$name.fatbin" "$source" >"$name.log" 2>&1; then
    echo "$source for $architecture:" >&2
    cat "$name.log" >&2
    return 1
  fi
  echo "$source $architecture $begin $(date +%s.%N) $(stat -c %s "$name.keep"/*.cubin) $(stat -c %s "$name.fatbin")" |
    awk '{ printf "%s %s %.1f %d %d\n", $1, $2, $4 - $3, $5, $6 }' >"$name.size"
  mv "$name.keep"/*.ptx "$name.ptx"
  rm -r "$name.keep"
}
export -f compile
export folder nvcc flags

sources=$(find src -name '*.cu' -path "*$filter*" | sort)
for source in $sources; do
  for architecture in $architectures; do printf '%s %s\n' "$source" "$architecture"; done
done | xargs -P "$jobs" -L 1 bash -c 'compile "$@"' compile

{
  echo 'source; of each architecture: seconds of nvcc, KB of code (compressed)'
  cat "$folder"/*.size | awk -v list="$architectures" '
    BEGIN { n = split(list, a, " "); printf "%-64s", "source"; for (i = 1; i <= n; ++i) printf "%22s", a[i]; print "" }
    function row(name) {
      printf "%-64s", name
      for (i = 1; i <= n; ++i) {
        key = name SUBSEP a[i]
        printf "%7.1f s %6d (%4d)", seconds[key], code[key] / 1000, packed[key] / 1000
      }
      print ""
    }
    { seconds[$1, $2] = $3; code[$1, $2] = $4; packed[$1, $2] = $5
      seconds["all", $2] += $3; code["all", $2] += $4; packed["all", $2] += $5
      if (!($1 in seen)) { seen[$1] = 1; order[++count] = $1 } }
    END { for (s = 1; s <= count; ++s) row(order[s]); row("all") }'
} >"$folder/sizes.txt"

# Threads of a CTA are in the PTX (.maxntid, .minnctapersm), the rest is what ptxas says.
for log in "$folder"/*.log; do
  name=${log%.log}
  awk -v architecture="${name##*.}" '
    FILENAME ~ /\.ptx$/ && /^\.visible \.entry|^\.entry/ { entry = $0; sub(/.*\.entry /, "", entry); sub(/\(.*/, "", entry) }
    FILENAME ~ /\.ptx$/ && /^\.maxntid/ { sub(/,.*/, "", $2); threads[entry] = $2 + 0 }
    FILENAME ~ /\.log$/ && /Compiling entry function/ { split($0, part, "\047"); entry = part[2] }
    FILENAME ~ /\.log$/ && /bytes spill stores/ { stores = $5; loads = $9 }
    FILENAME ~ /\.log$/ && /Used [0-9]+ registers/ {
      shared = 0
      for (i = 1; i <= NF; ++i) {
        if ($i == "registers," || $i == "registers") registers = $(i - 1)
        if ($i ~ /^smem/) shared = $(i - 1 - ($(i - 1) !~ /^[0-9]+$/))
      }
      print entry, architecture, registers, stores, loads, shared, (entry in threads ? threads[entry] : 1024)
    }' "$name.ptx" "$log"
done | c++filt -p | awk '
  # Limits of a multiprocessor: threads (CUDA programming guide, technical specifications); all have 65,536 registers,
  # which a warp takes in units of 256.
  BEGIN { most["80"] = 2048; most["86"] = 1536; most["89"] = 1536; most["90a"] = 2048; most["100"] = 2048; most["120"] = 1536
          print "registers, bytes spilled (stores / loads), static shared memory, threads, CTAs by registers and threads; kernel" }
  { n = NF; threads = $n; shared = $(n - 1); loads = $(n - 2); stores = $(n - 3); registers = $(n - 4); architecture = $(n - 5)
    kernel = $0; sub(/ [^ ]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+ [0-9]+$/, "", kernel)
    gsub(/\(anonymous namespace\)::|hone::cuda::/, "", kernel)
    warps = int((threads + 31) / 32)
    by_registers = int(65536 / (warps * int((registers * 32 + 255) / 256) * 256)); by_threads = int(most[architecture] / (warps * 32))
    printf "%-4s %4d %6d / %-6d %6d %5d %3d  %s\n", architecture, registers, stores, loads, shared, threads,
           by_registers < by_threads ? by_registers : by_threads, kernel }' >"$folder/registers.txt"
tail -1 "$folder/sizes.txt"
