#!/bin/bash
# Runs Hone and transformers in turn on the same work and writes bench/results/step-MODEL-MODE-DATE.json:
# machine, versions, commands and both results.
#   bench/peers/run.sh MODEL MODE [options of both, such as --layers 8 --batch 2]
#   HONE=build/hone  PEER_OPTIONS="--compile"   before it: another program, options of the peer alone
set -euo pipefail
cd "$(dirname "$0")/../.."
model=${1:?MODEL: qwen3-30b-a3b, mixtral-8x7b, qwen3-8b or cpu-moe}
mode=${2:?MODE: full, lora or lora-all}
shift 2
hone=${HONE:-build/hone}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ours=("$hone" bench step --model "$model" --mode "$mode" "$@" --json "$work/hone.json")
read -ra extra <<<"${PEER_OPTIONS:-}"
peer=(python3 bench/peers/hf_step.py --model "$model" --mode "$mode" "$@" "${extra[@]}")
"${ours[@]}"
"${peer[@]}" | tee "$work/peer.json"

mkdir -p bench/results
python3 - "$work" "bench/results/step-$model-$mode-$(date -u +%F).json" "${ours[*]}" "${peer[*]}" <<'PY'
import json, pathlib, platform, sys
work, target, ours, peer = sys.argv[1:]
hone = json.loads(pathlib.Path(work, "hone.json").read_text())
other = json.loads(pathlib.Path(work, "peer.json").read_text().splitlines()[-1])
ours = ours.replace(f" --json {work}/hone.json", "")
result = {"machine": {"device": hone["device_name"], "host": hone["host"], "cores": hone["cores"], "kernel": platform.release()},
          "date": hone["date"], "versions": {"hone": hone["version"], "transformers": other["transformers"], "torch": other["torch"]},
          "commands": {"hone": ours, "transformers": peer}, "hone": hone, "transformers": other,
          "ratio": hone["tokens_per_second"] / other["tokens_per_second"]}
pathlib.Path(target).write_text(json.dumps(result, indent=1) + "\n")
print(f"{target}: Hone {hone['tokens_per_second']:.0f} tokens/s, transformers {other['tokens_per_second']:.0f}, ratio {result['ratio']:.2f}")
PY
