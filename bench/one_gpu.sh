#!/usr/bin/env bash
# What one GPU, and a CPU with AMX beside it, show of other GPUs' kernels and of experts on the CPU, most valuable first:
#   bench/one_gpu.sh FOLDER [SECONDS]
# Jobs are as in bench/jobs.sh; the call ends after SECONDS (default: all jobs).
# Environment: BIN, the folder of hone and hone_ops_test (default build), for `ptx` built with compute_80 among
# HONE_CUDA_ARCHITECTURES; DEVICE, cuda or, to try the script out, cpu; ONLY, a pattern of names.
set -uo pipefail
folder=$1 until=$((SECONDS + ${2:-100000}))
bin=${BIN:-build} device=${DEVICE:-cuda} only=${ONLY:-}
mkdir -p "$folder"
source "$(dirname "$0")/jobs.sh"

hone=("$bin/hone")
# Reference cases by the kernels of a tier; each prints its last line.
goldens() { # TIER DTYPE
  local case failed=0 output
  for case in tests/fixtures/goldens/*/; do
    output=$("$bin/hone" verify "$case" --device "$device" --tier "$1" --dtype "$2" 2>&1) || failed=1
    echo "$(basename "$case"): $(tail -n 1 <<< "$output")"
  done
  return $failed
}
# Losses of 200 steps of the quickstart's first act in bfloat16, by the kernels of two tiers: their means within 1 %. The last
# 20 alone are no measure: each way of rounding ends some percent from the others.
learning() {
  local tier means=()
  small || return 1
  for tier in sm90 sm80; do
    "$bin/hone" train "$folder/small/act1.yaml" --tier "$tier" device="$device" dtype=bfloat16 output_dir="$folder/learning-$tier" \
      max_steps=200 logging_steps=1 eval_strategy=no eval_steps=null val_split=0 overwrite_output_dir=true || return 1
    means+=("$(grep -oE '"loss":[0-9.e-]+' "$folder/learning-$tier/metrics.jsonl" | cut -d: -f2 |
      awk '{ sum += $1; last += $1; if (NR % 20 == 0) { printf "%.4f ", last / 20; last = 0 } } END { print sum / NR }')")
  done
  echo "means of each 20 losses, and of all:"
  printf '%s\n' "sm90 ${means[0]}" "sm80 ${means[1]}"
  awk -v a="${means[0]##* }" -v b="${means[1]##* }" 'BEGIN { d = a - b; exit !(a > 0 && d * d < 1e-4 * a * a) }'
}
# Experts of some layers computed by the CPU, of some streamed, of the rest on the GPU.
mixed() {
  local case failed=0
  for case in qwen3_moe deepseek_v3 gpt_oss mixtral; do
    "$bin/hone" verify "tests/fixtures/goldens/$case" --device "$device" --experts-device cpu --cpu-expert-layers 1 | tail -n 1
    ((PIPESTATUS[0] == 0)) || failed=1
    "$bin/hone" verify "tests/fixtures/goldens/$case" --device "$device" --experts-device cpu --cpu-expert-layers 1 \
      --cpu-offload experts | tail -n 1
    ((PIPESTATUS[0] == 0)) || failed=1
  done
  return $failed
}
answers() { # OPTIONS...: of the quickstart's model
  small || return 1
  "$bin/hone" generate --model "$folder/small/act1" --device "$device" --prompt 'a' --max-new-tokens 16 "$@"
}
export -f small goldens learning mixed answers
export bin device folder

job machine 30 bash -c 'nvidia-smi; "$bin/hone" env; lscpu'
job amx_tests 200 "$bin/hone_ops_test" --gtest_brief=1 --gtest_filter='MoeExperts.*:TileProducts.*'
for weights in int4 int8 mxfp4; do  # with int4 also int4_128, whose name contains it
  job "amx_$weights" 100 "$bin/hone" bench ops --device cpu --model deepseek-v3 --op "moe layer, LoRA, $weights" --tokens 2048 --json "$folder/amx_$weights.json"
done
v3=(--model deepseek-v3 --layers 4 --lora-r 8 --seq 2048 --batch 1 --experts-device cpu --expert-weight-dtype int4)
step v3_cpu_int4 150 "${v3[@]}" --mode lora-all --expert-lora split
# Products alone: the profile's rows of moe_gate_up and moe_down, without adapters
step v3_cpu_int4_frozen 150 "${v3[@]}" --mode lora --profile "$folder/v3_cpu_int4.trace"
job mixed 200 mixed
thirty=(--model qwen3-30b-a3b --mode lora-all --expert-lora split --lora-r 8 --seq 4096 --batch 4 --recompute everything)
step mixed_cpu 150 "${thirty[@]}" --experts-device cpu --cpu-expert-layers 8
step mixed_streamed 150 "${thirty[@]}" --cpu-offload experts --offload-expert-layers 24
step mixed_both 200 "${thirty[@]}" --experts-device cpu --cpu-expert-layers 6 --cpu-offload experts --offload-expert-layers 24 --profile "$folder/mixed_both.trace"
step streamed_int4 200 --model deepseek-v3 --layers 7 --mode lora --base-weight-dtype int4 --cpu-offload experts --seq 4096 --batch 8 --recompute everything --profile "$folder/streamed_int4.trace"

tests=("$bin/hone_ops_test" --device "$device")
for tier in sm80 a100-80gb rtx-4090; do
  job "ops_$tier" 200 "${tests[@]}" --tier "$tier"
  job "memcheck_$tier" 200 compute-sanitizer --tool memcheck "${tests[@]}" --tier "$tier" --gtest_filter='PackedAttention*'
  # Tests of many blocks take many minutes with racecheck.
  job "racecheck_$tier" 200 compute-sanitizer --tool racecheck "${tests[@]}" --tier "$tier" \
    --gtest_filter='PackedAttention.*TensorCores*:PackedAttention.*Document*:PackedAttention.*TwoUses*'
done
job ptx 300 env CUDA_FORCE_PTX_JIT=1 "${tests[@]}" --tier a100-80gb
for dtype in float32 bfloat16; do job "goldens_sm80_$dtype" 300 goldens sm80 "$dtype"; done
job learning 200 learning
job answers_gpu 60 answers
job answers_cpu 60 answers --experts-device cpu
step full8_sm80 120 --model qwen3-30b-a3b --layers 8 --mode full --batch 4 --tier sm80
step mixtral_sm80 120 --model mixtral-8x7b --mode lora --batch 2 --tier sm80
step lora_sm80 120 --model qwen3-30b-a3b --mode lora --batch 4 --tier sm80
