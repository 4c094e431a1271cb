#!/usr/bin/env bash
# Two hosts made of one: bench/hosts.sh FOLDER [SECONDS], as root on a machine with 2 or 4 GPUs, or on a CPU to try it out.
# A host is a network namespace with its own name, shared memory and half of the GPUs; a virtual cable joins the two, so
# that NCCL goes over sockets. Each row trains the quickstart's model on one host and on two, and compares the losses.
# Jobs are as in bench/jobs.sh. Environment: BIN, DEVICE and ONLY as in bench/gpus.sh; needs iproute2 and util-linux.
set -uo pipefail
folder=$1 until=$((SECONDS + ${2:-100000}))
bin=$(realpath "${BIN:-build}") device=${DEVICE:-cuda} only=${ONLY:-}
mkdir -p "$folder"
folder=$(realpath "$folder")
gpus=$(nvidia-smi -L 2> /dev/null | wc -l)
each=$((gpus >= 4 ? 2 : 1)) # ranks of a host
stem=hone-host-$$- net=10.214.7
export NCCL_NVLS_ENABLE=0
source "$(dirname "$0")/jobs.sh"

lift() { for host in 1 2; do ip netns del "$stem$host" 2> /dev/null; done; }
trap lift EXIT
for host in 1 2; do ip netns add "$stem$host" || exit 1; done
ip link add "hone$$-1" netns "${stem}1" type veth peer name "hone$$-2" netns "${stem}2" || exit 1
for host in 1 2; do
  ip -n "$stem$host" addr add "$net.$host/24" dev "hone$$-$host"
  ip -n "$stem$host" link set "hone$$-$host" up
  ip -n "$stem$host" link set lo up
done
# ADDRESS WORDS...: a shell on the host of this address, as ssh is called.
agent=$folder/agent
cat > "$agent" << END
#!/bin/sh
host=\${1##*.}
shift
CUDA_VISIBLE_DEVICES=\$(seq -s , \$(((host - 1) * $each)) \$((host * $each - 1)))
export CUDA_VISIBLE_DEVICES
exec ip netns exec $stem\$host unshare --uts --mount sh -c 'hostname $stem'\$host'; mount -t tmpfs tmpfs /dev/shm; exec sh -c "\$*"' sh "\$*"
END
chmod +x "$agent"

keys() { echo "$(quickstart_run "$1") max_steps=$2 overwrite_output_dir=true"; } # OUTPUT STEPS
# The largest relative difference of the losses of two runs, which must be of as many steps: at most 1e-4.
compare() {
  paste <(losses "$1") <(losses "$2") | awk -v steps="$3" '
    { d = $1 - $2; d = (d < 0 ? -d : d) / ($1 > 0 ? $1 : 1e-9); if (d > most) most = d; ++n }
    END { printf "losses of %d steps, largest relative difference %.2g\n", n, most; exit !(n == steps && most < 1e-4) }'
}
one_host() { # OUTPUT STEPS KEYS...
  "$bin/hone" launch -n $((2 * each)) --device "$device" -- $(keys "$1" "$2") "${@:3}" > "$1.log" 2>&1
}
two_hosts() {
  (cd "$folder" && rm -rf "logs-of-$(basename "$1")" && mkdir "logs-of-$(basename "$1")" && cd "logs-of-$(basename "$1")" &&
    exec "$bin/hone" launch --hosts "$net.1,$net.2" -n "$each" --device "$device" --ssh "$agent" --env NCCL_NVLS_ENABLE=0 -- \
      $(keys "$1" "$2") "${@:3}") > "$1.log" 2>&1
}
# NAME KEYS...: the losses of one host on two.
same() {
  local name=$1 steps=20
  shift
  one_host "$folder/one-$name" $steps save_strategy=no "$@" || { tail -n 5 "$folder/one-$name.log"; return 1; }
  two_hosts "$folder/two-$name" $steps save_strategy=no "$@" || { tail -n 5 "$folder/two-$name.log"; return 1; }
  grep -ohE 'rank [0-9]+ \([^,]+,' "$folder/logs-of-two-$name"/logs/rank_0.log | sort -u | tr '\n' ' '
  compare "$folder/one-$name" "$folder/two-$name" $steps
}
# The second host is killed; the run ends, and goes on from its last checkpoint to the losses of one that was not.
killed() {
  local output=$folder/killed steps at begin code pid
  rm -rf "$output"
  two_hosts "$output" 2000 save_strategy=steps save_steps=5 "$@" &
  pid=$!
  while kill -0 $pid 2> /dev/null && (($(steps_of "$output") < 12)); do sleep 0.1; done
  begin=$(date +%s%3N)
  ip netns pids "${stem}2" | xargs kill -9
  wait $pid
  code=$?
  echo "host 2 killed after $(steps_of "$output") steps: exit code $code after $(($(date +%s%3N) - begin)) ms"
  grep -m1 -oE "rank $each .*" "$output.log"
  ((code != 0)) && [ -d "$output/checkpoint-5" ] || { tail -n 5 "$output.log"; return 1; }
  at=$(ls -d "$output"/checkpoint-* | grep -oE '[0-9]+$' | sort -n | tail -n 1)
  steps=$((at + 8))
  two_hosts "$output" $steps save_strategy=steps save_steps=5 resume_from_checkpoint=auto overwrite_output_dir=false "$@"
  code=$?
  one_host "$folder/not-killed" $steps save_strategy=no "$@" || return 1
  paste <(losses "$output" | tail -n 8) <(losses "$folder/not-killed" | tail -n 8) > "$folder/resumed.txt"
  echo "resumed after step $at: exit code $code; the last 8 losses, and those of one host that was not killed: $(tr '\t\n' '/ ' < "$folder/resumed.txt")"
  ((code == 0)) && awk '{ d = $1 - $2; if (d * d > 1e-8 * $1 * $1) bad = 1 } END { exit bad || NR != 8 }' "$folder/resumed.txt"
}
# PyTorch's launcher, an agent on each host.
torchrun_hosts() {
  local host pids=()
  for host in 1 2; do
    "$agent" "$net.$host" "torchrun --nnodes 2 --nproc-per-node $each --node-rank $((host - 1)) --master-addr $net.1 --master-port 29611 \
      --no-python $bin/hone $(keys "$folder/two-torchrun" 20) save_strategy=no zero_stage=3" > "$folder/torchrun-$host.log" 2>&1 &
    pids+=($!)
  done
  for host in "${pids[@]}"; do wait "$host" || { tail -n 5 "$folder"/torchrun-*.log; return 1; }; done
  compare "$folder/one-zero3" "$folder/two-torchrun" 20
}
# Collectives between the hosts, and the cable's own rate where iperf3 is.
links() {
  local rank ranks=$((2 * each)) host
  for ((rank = ranks - 1; rank >= 0; --rank)); do
    host=$((rank / each + 1))
    "$agent" "$net.$host" "RANK=$rank LOCAL_RANK=$((rank % each)) WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$each MASTER_ADDR=$net.1 MASTER_PORT=29612 \
      HONE_RUN_SECRET=a-secret-of-these-links NCCL_NVLS_ENABLE=0 $bin/hone_ranks_check --device $device --bandwidth" \
      > "$folder/links-$rank.log" 2>&1 &
  done
  wait
  cat "$folder/links-0.log"
}
export -f keys compare one_host two_hosts same killed torchrun_hosts links
export bin device folder each stem net agent

small || exit 1
job same_data_parallel 120 same data-parallel zero_stage=0
job same_zero3 120 same zero3 zero_stage=3
job same_zero1 120 same zero1 zero_stage=1
job same_experts 120 same experts zero_stage=1 expert_parallel_size=2
job same_experts_zero3 120 same experts-zero3 zero_stage=3 expert_parallel_size=2
if ((each > 1)); then job same_groups 120 same groups zero_stage=3 dp_shard_size="$each"; fi
job killed 200 killed zero_stage=3
if command -v torchrun > /dev/null; then job torchrun 120 torchrun_hosts; fi
if [ -x "$bin/hone_ranks_check" ]; then job links 120 links; fi
