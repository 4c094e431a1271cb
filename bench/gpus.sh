#!/usr/bin/env bash
# What several GPUs of one host do, most valuable first: bench/gpus.sh RANKS FOLDER [SECONDS]
# Jobs are as in bench/jobs.sh; the call ends after SECONDS (default: all jobs).
# Environment: BIN, the folder of hone and hone_ranks_check (default build); DEVICE, cuda or, to try the script out, cpu;
# ONLY, a pattern of names; TEXT and TOKENIZER, a file and a folder, for jobs on text beside those on random tokens;
# PEERS=1 for transformers (bench/peers).
set -uo pipefail
ranks=$1 folder=$2 until=$((SECONDS + ${3:-100000}))
bin=${BIN:-build} device=${DEVICE:-cuda} only=${ONLY:-}
mkdir -p "$folder"
export NCCL_NVLS_ENABLE=0

source "$(dirname "$0")/jobs.sh"
launch() { "$bin/hone" launch -n "$ranks" --device "$device" -- "$@"; }
hone=(launch)

# Collectives and copies, each rank a process of its own.
links() {
  local port=$((20000 + RANDOM % 10000)) rank
  for ((rank = 1; rank < ranks; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      HONE_RUN_SECRET=a-secret-of-these-links "$bin/hone_ranks_check" --device "$device" --bandwidth > /dev/null &
  done
  RANK=0 LOCAL_RANK=0 WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    HONE_RUN_SECRET=a-secret-of-these-links "$bin/hone_ranks_check" --device "$device" --bandwidth
}

# all_of PIDS...: waits for these jobs; fails if one has
all_of() {
  local pid failed=0
  for pid in "$@"; do wait "$pid" || failed=1; done
  return $failed
}
# Reference cases, several at once: each prints its last line.
golden() {
  local name=$1 output
  shift
  output=$(launch verify "tests/fixtures/goldens/$name" --device "$device" "$@" 2>&1)
  local code=$?
  echo "$name $*: exit code $code; $(tail -n 1 <<< "$output")"
  return $code
}
goldens() {
  local names=(qwen3_moe deepseek_v3 gpt_oss mixtral qwen3_next qwen3_5_moe granitemoe olmoe) name failed=0 running=()
  for name in "${names[@]}"; do
    running=()
    golden "$name" --zero-stage 3 & running+=($!)
    if ((ranks > 2)); then golden "$name" --zero-stage 3 --shard-size 2 & running+=($!); fi
    golden "$name" --zero-stage 1 --expert-parallel-size "$ranks" & running+=($!)
    golden "$name" --zero-stage 3 --expert-parallel-size 2 & running+=($!)
    all_of "${running[@]}" || failed=1
  done
  return $failed
}

# train OUTPUT RANKS KEYS...: act 1 of the quickstart on so many ranks
train() {
  local output=$1 count=$2
  shift 2
  "$bin/hone" launch -n "$count" --device "$device" -- $(quickstart_run "$output") save_strategy=steps overwrite_output_dir=false "$@"
}
# One rank is killed after some steps: all end, and the run goes on from the newest checkpoint.
kill_one() {
  local name=$1 output=$folder/killed-$1 log=$folder/killed-$1.log pid begin victim code
  shift
  rm -rf "$output"
  train "$output" "$ranks" max_steps=400 save_steps=5 "$@" > "$log" 2>&1 &
  pid=$!
  while kill -0 $pid 2> /dev/null && (($(steps_of "$output") < 12)); do sleep 0.1; done
  victim=$(pgrep -P "$(pgrep -P $pid -x hone || echo $pid)" | tail -n 1)
  begin=$(date +%s%3N)
  kill -9 "$victim"
  wait $pid
  code=$?
  local ended=$(($(date +%s%3N) - begin)) at
  at=$(steps_of "$output")
  train "$output" "$ranks" max_steps=$((at + 8)) save_steps=5 resume_from_checkpoint=auto "$@" > "$log.resumed" 2>&1
  local resumed=$?
  echo "$name: rank $victim killed after $at steps: exit code $code after $ended ms; resumed: exit code $resumed," \
    "$(grep -m1 -oiE 'resum.*|contin.*' "$log.resumed")"
  ((code == 4 && resumed == 0))
}
kills() {
  small || return 1
  local running=()
  kill_one stage1 zero_stage=1 & running+=($!)
  kill_one stage2 zero_stage=2 & running+=($!)
  kill_one stage3 zero_stage=3 & running+=($!)
  if ((ranks > 2)); then kill_one groups zero_stage=3 dp_shard_size=2 & running+=($!); fi
  kill_one spread zero_stage=1 expert_parallel_size="$ranks" & running+=($!)
  kill_one spread2_stage3 zero_stage=3 expert_parallel_size=2 & running+=($!)
  all_of "${running[@]}"
}
# A checkpoint of all ranks goes on with other numbers of ranks: the last loss is that of the run that wrote it, within
# a relative 1e-4.
last_losses() { losses "$1" | tail -n "$2" | tr '\n' ' '; } # FOLDER COUNT
resume_as() { # FROM NAME RANKS KEYS...
  local output=$folder/resumed-$1-$2
  rm -rf "$output"
  train "$output" "$3" max_steps=20 save_steps=10 resume_from_checkpoint="$folder/saved-$1/checkpoint-10" "${@:4}" > "$output.log" 2>&1
  local code=$?
  echo "saved as $1 on $ranks ranks, resumed as $2: exit code $code, $(last_losses "$output" 3)"
  ((code == 0)) && awk -v a="$(last_losses "$folder/saved-$1" 1)" -v b="$(last_losses "$output" 1)" \
    'BEGIN { d = a - b; exit !(a > 0 && d * d < 1e-8 * a * a) }'
}
save_as() { # NAME KEYS...
  local count failed=0 running=()
  rm -rf "$folder/saved-$1"
  train "$folder/saved-$1" "$ranks" max_steps=20 save_steps=10 "${@:2}" > "$folder/saved-$1.log" 2>&1 || failed=1
  echo "saved as $1 on $ranks ranks: exit code $failed, $(last_losses "$folder/saved-$1" 3)"
  for count in $(printf '%s\n' 1 2 "$ranks" | sort -nu); do
    resume_as "$1" "stage3-of-$count" "$count" zero_stage=3 & running+=($!)
  done
  resume_as "$1" "spread-over-$ranks" "$ranks" zero_stage=1 expert_parallel_size="$ranks" & running+=($!)
  all_of "${running[@]}" && return $failed
}
resumes() {
  small || return 1
  local running=()
  save_as stage3 zero_stage=3 & running+=($!)
  save_as spread zero_stage=1 expert_parallel_size="$ranks" & running+=($!)
  all_of "${running[@]}"
}
export -f launch links all_of golden goldens train kill_one kills last_losses resume_as save_as resumes
export bin device ranks folder

bf16=(--master-dtype bfloat16 --grad-dtype bfloat16 --opt-m-dtype bfloat16 --opt-v-dtype bfloat16)
full30=(--model qwen3-30b-a3b --mode full --batch 4 --zero-stage 3)
job machine 30 bash -c 'nvidia-smi topo -m; nvidia-smi -q -d CLOCK | grep -m4 -iE "sm |memory "; "$bin/hone" env; free -g'
job links 120 links
step full30_bf16 150 "${full30[@]}" "${bf16[@]}"
if ((ranks >= 8)); then step full30_f32 150 "${full30[@]}"; fi
step lora 150 --model qwen3-30b-a3b --mode lora --batch 4 --zero-stage 3
step lora_all 150 --model qwen3-30b-a3b --mode lora-all --batch 4 --zero-stage 3
step full8_stage3 120 --model qwen3-30b-a3b --layers 8 --mode full --batch 4 --zero-stage 3
step full8_stage1 120 --model qwen3-30b-a3b --layers 8 --mode full --batch 4 --zero-stage 1
layer=(--mode full --batch 2 --zero-stage 1)
step spread_layer 120 --model qwen3-30b-a3b --layers 6 "${layer[@]}" --expert-parallel-size "$ranks" --profile "$folder/spread_layer.trace"
step spread_not 120 --model qwen3-30b-a3b --layers 6 "${layer[@]}"
step spread_layer_collectives 120 --model qwen3-30b-a3b --layers 6 "${layer[@]}" --expert-parallel-size "$ranks" --weight-fetch collective --profile "$folder/spread_layer_collectives.trace"
step spread_mixtral 120 --model mixtral-8x7b --layers 2 "${layer[@]}" --expert-parallel-size "$ranks" --profile "$folder/spread_mixtral.trace"
if [ -n "${TEXT:-}" ]; then
  text=(--text "$TEXT" --tokenizer "$TOKENIZER")
  step full30_bf16_text 150 "${full30[@]}" "${bf16[@]}" "${text[@]}"
  step spread_layer_text 120 --model qwen3-30b-a3b --layers 6 "${layer[@]}" --expert-parallel-size "$ranks" "${text[@]}"
  step spread_not_text 120 --model qwen3-30b-a3b --layers 6 "${layer[@]}" "${text[@]}"
fi
job goldens 300 goldens
job kills 150 kills
job resumes 150 resumes
step q235_lora 200 --model qwen3-235b-a22b --mode lora --batch 1 --zero-stage 3
step v3_nf4 250 --model deepseek-v3 --mode lora --base-weight-dtype nf4 --batch 1 --zero-stage 3
step q32 150 --model qwen3-32b --mode full --batch 2 --zero-stage 3 "${bf16[@]}"
step mixtral22 150 --model mixtral-8x22b --mode lora --batch 2 --zero-stage 3
step lora_gathers 150 --model qwen3-30b-a3b --mode lora --batch 4 --zero-stage 3 --weight-fetch collective
step gptoss120 150 --model gpt-oss-120b --mode lora --batch 4 --zero-stage 3
if [ -n "${PEERS:-}" ]; then
  job peer_full30 150 torchrun --nproc-per-node "$ranks" bench/peers/hf_step.py --model qwen3-30b-a3b --fsdp bfloat16 --reshard --batch 1 --steps 3
fi
step v3_streamed 250 --model deepseek-v3 --mode lora --base-weight-dtype nf4 --batch 1 --zero-stage 3 --cpu-offload experts
