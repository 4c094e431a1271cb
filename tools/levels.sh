#!/usr/bin/env bash
# Tests of what depends on the CPU's instruction set, at every level below the best that the machine has: ranks against one
# rank, reference cases, trajectories, each for a part of the cases.
#   tools/levels.sh BUILD_DIR [LEVEL...]
set -euo pipefail
build=$1
shift
best=$(env -u HONE_INSTRUCTION_SET "$build/hone" env | awk '$1 == "instruction_set" { print $2 }')
if [ $# = 0 ]; then
  for level in baseline avx2 avx512; do
    [ "$level" != "$best" ] || break
    set -- "$@" "$level"
  done
fi
[ $# -gt 0 ] || { echo "the best instruction set here is $best: there is none below"; exit 0; }
programs=(
  'ranks Cases/CaseOfSpreadExperts.*:SpreadExperts.Train*:RanksInGroups.TrainAsOneRankDoes:Ranks.TrainA*:Cases/PlantedError.*'
  'golden Cases/Golden.EveryRowHoldsInFloat32/*:Cases/Golden.TheMedian*'
  'experts_on_host ExpertsOnHost.TrainAsOnTheDevice:SharedExperts.TrainAsOneRank'
  'trainer_ranks *.MetricsAndModelAreThoseOfOneRank:*.ExpertsMayBeSpreadOverThem'
)
run() {
  local begin=$SECONDS
  # Tests name their folders by themselves, and another level may be at the same one.
  export TEST_TMPDIR=$build/levels-$1-$2
  mkdir -p "$TEST_TMPDIR"
  "$build/hone_$2_test" --gtest_brief=1 "--gtest_filter=$3" >"$build/levels-$1-$2.txt" 2>&1 ||
    { cat "$build/levels-$1-$2.txt"; echo "HONE_INSTRUCTION_SET=$1 $build/hone_$2_test FAILED"; return 1; }
  echo "$1: hone_$2_test passed in $((SECONDS - begin)) s"
}
export -f run
export build
for level in "$@"; do
  for program in "${programs[@]}"; do printf '%s\0' "$level ${program%% *} ${program#* }"; done
done | xargs -0 -P "${TEST_JOBS:-2}" -I{} bash -c 'set -f; set -- {}; HONE_INSTRUCTION_SET=$1 run "$1" "$2" "$3"'
