#!/usr/bin/env python3
"""Writes docs/fits.md: which model fits which machine, by which method, with which keys.

    tools/fits.py build/hone > docs/fits.md
    tools/fits.py --cpu build/hone     only its section on CPUs
    tools/fits.py --predictions        only its last section, which needs no program

Every number is a plan of `hone estimate` for a GPU that need not be present; any build has the same. For each cell the
settings are tried from the fastest to the most frugal, and the first that fits is shown. Measured tokens a second come from
bench/results.
"""
import itertools
import json
import re
import subprocess
import sys

MODELS = ["granite-3b-a800m", "olmoe-7b-a1b", "granite-4.0-h-tiny", "qwen3-8b", "deepseek-v2-lite", "gpt-oss-20b", "ernie-4.5-21b-a3b",
          "gemma-4-26b-a4b", "glm-4.7-flash", "qwen3-30b-a3b", "nemotron-3-nano-30b-a3b", "granite-4.0-h-small", "qwen3-32b",
          "qwen3.5-35b-a3b", "mixtral-8x7b", "qwen2-57b-a14b", "qwen3-next-80b-a3b", "hunyuan-a13b", "solar-open-100b", "glm-4.5-air",
          "gpt-oss-120b", "mistral-small-4", "mixtral-8x22b", "qwen3-235b-a22b", "deepseek-v3"]
MACHINES = [("1 × 24 GB", 1, 24), ("1 × 80 GB", 1, 80), ("2 × 80 GB", 2, 80), ("8 × 80 GB", 8, 80), ("1 × 141 GB", 1, 141),
            ("2 × 141 GB", 2, 141), ("4 × 141 GB", 4, 141), ("8 × 141 GB", 8, 141)]
CARDS = [(f"1 × {memory} GB", 1, memory) for memory in (12, 16, 24, 32, 48, 80, 141)] + [("8 × 80 GB", 8, 80)]
DENSE = ["qwen3-8b", "qwen3-32b"]
PACKED = {"gpt-oss-20b": "auto", "gpt-oss-120b": "auto"}  # MXFP4 checkpoints; of others the base is rounded to nf4
HOST_GB_PER_GPU = 256  # of host memory, that offloading may use

CHECKPOINTING = ["gradient_checkpointing=true"]
PARAMS, ACTIVATIONS = ["cpu_offload=[params]"], ["cpu_offload=[params,activations]"]
ALL_PARTS = ["cpu_offload=[optimizer,params,activations]"]
FEW_BITS = ["master_dtype=bfloat16", "grad_dtype=bfloat16", "optim=adamw_8bit"]
IN_BACKWARD = ["optimizer_in_backward=true", "max_grad_norm=0", "nan_policy=stop", "gradient_accumulation_steps=1"]

# letter: (keys, for one rank or several)
LORA = {"a": ([], "any"), "b": (CHECKPOINTING, "any"), "c": (CHECKPOINTING + ["zero_stage=3"], "several"),
        "d": (CHECKPOINTING + PARAMS, "one"), "e": (CHECKPOINTING + ACTIVATIONS, "one"),
        "o": (CHECKPOINTING + ALL_PARTS, "one"),
        "f": (CHECKPOINTING + ["zero_stage=3"] + PARAMS, "several"), "g": (CHECKPOINTING + ["zero_stage=3"] + ACTIVATIONS, "several")}
FULL = {"a": (["zero_stage=1"], "any"), "b": (CHECKPOINTING + ["zero_stage=1"], "any"), "c": (CHECKPOINTING + ["zero_stage=3"], "several"),
        "h": (CHECKPOINTING + FEW_BITS + ["zero_stage=3"], "several"), "i": (CHECKPOINTING + FEW_BITS, "one"),
        "j": (CHECKPOINTING + FEW_BITS + IN_BACKWARD, "one"),
        "k": (CHECKPOINTING + FEW_BITS + ["zero_stage=3", "cpu_offload=[optimizer]"], "several"),
        "l": (CHECKPOINTING + FEW_BITS + ["zero_stage=3", "cpu_offload=[params,optimizer]"], "several"),
        "m": (CHECKPOINTING + FEW_BITS + IN_BACKWARD + ["cpu_offload=[optimizer]"], "one"),
        "n": (CHECKPOINTING + FEW_BITS + IN_BACKWARD + ["cpu_offload=[params,optimizer]"], "one")}
ATTENTION, ALL = ["finetuning_type=lora", "lora_target_modules=attention"], ["finetuning_type=lora"]
FOUR_BITS = ", base of 4 bits"
METHODS = [("LoRA r16 on attention", ATTENTION, LORA, MACHINES),
           ("LoRA r16 on attention" + FOUR_BITS, ATTENTION, LORA, CARDS),
           ("LoRA r16 on attention and every expert or MLP", ALL, LORA, MACHINES),
           ("LoRA r16 on attention and every expert or MLP" + FOUR_BITS, ALL, LORA, CARDS),
           ("full", ["finetuning_type=full"], FULL, MACHINES)]

HEAD = """# Which model fits where

Every cell is a plan of `hone estimate NAME device=cuda --ranks N` for documents of 4096 tokens, one at a time: the letter of the first
setting that fits, GB (10^9 bytes) on each GPU, and after a plus sign GB of host memory for each GPU, of which up to 256 are counted on. "–":
no setting fits in this version. A base of 4 bits is `base_weight_dtype: nf4`, of gpt-oss `auto`, which keeps the MXFP4 of its files.
Qwen3-VL-30B-A3B has the plans of Qwen3-30B-A3B. Tokens a second are of each GPU, measured on one, two or four H200 of 141 GB with the settings in
[measurements.md](../bench/results/measurements.md). [memory.md](memory.md) says what plans consist of. Written by `tools/fits.py`.

| letter | keys |
|---|---|
| a | none (full: `zero_stage: 1` on several GPUs) |
| b | `gradient_checkpointing: true` |
| c | b, and `zero_stage: 3` |
| d | b, and `cpu_offload: [params]` |
| e | b, and `cpu_offload: [params, activations]` |
| f | c, and `cpu_offload: [params]` |
| g | c, and `cpu_offload: [params, activations]` |
| h | c, and few bits: `master_dtype: bfloat16`, `grad_dtype: bfloat16`, `optim: adamw_8bit` |
| i | b, and few bits |
| j | i, and the optimizer in backward: `optimizer_in_backward: true`, `max_grad_norm: 0`, `nan_policy: stop`, `gradient_accumulation_steps: 1` |
| k | h, and `cpu_offload: [optimizer]` |
| l | h, and `cpu_offload: [params, optimizer]` |
| m | j, and `cpu_offload: [optimizer]` |
| n | j, and `cpu_offload: [params, optimizer]` |
| o | b, and `cpu_offload: [optimizer, params, activations]` |"""

# Tokens a second of each GPU, where the model, the method and the setting have been measured.
MEASURED = {
    ("qwen3-30b-a3b", "LoRA r16 on attention", "1 × 141 GB"): "24,994 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention", "1 × 24 GB"): "7,714 tok/s",
    ("qwen3-30b-a3b", "full", "1 × 141 GB"): "9,435 tok/s",
    ("qwen3-30b-a3b", "full", "2 × 141 GB"): "15,039 tok/s",
    ("qwen3-32b", "full", "2 × 141 GB"): "2,236 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention", "2 × 141 GB"): "25,700 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention and every expert or MLP", "2 × 141 GB"): "23,042 tok/s",
    ("qwen3-30b-a3b", "full", "4 × 141 GB"): "16,239 tok/s",
    ("qwen3-32b", "full", "4 × 141 GB"): "2,270 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention", "4 × 141 GB"): "24,131 tok/s",
    ("gpt-oss-120b", "LoRA r16 on attention", "4 × 141 GB"): "10,325 tok/s",
    ("mixtral-8x22b", "LoRA r16 on attention", "4 × 141 GB"): "2,402 tok/s",
    ("qwen3-235b-a22b", "LoRA r16 on attention", "4 × 141 GB"): "1,302 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention and every expert or MLP", "4 × 141 GB"): "21,551 tok/s",
    ("mixtral-8x7b", "LoRA r16 on attention", "1 × 141 GB"): "9,003 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention" + FOUR_BITS, "1 × 12 GB"): "7,379 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention" + FOUR_BITS, "1 × 24 GB"): "14,320 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention and every expert or MLP" + FOUR_BITS, "1 × 141 GB"): "22,378 tok/s",
    ("gpt-oss-20b", "LoRA r16 on attention" + FOUR_BITS, "1 × 12 GB"): "9,969 tok/s",
    ("gpt-oss-20b", "LoRA r16 on attention" + FOUR_BITS, "1 × 24 GB"): "16,558 tok/s",
    ("mixtral-8x7b", "LoRA r16 on attention" + FOUR_BITS, "1 × 48 GB"): "6,813 tok/s",
    ("mixtral-8x7b", "LoRA r16 on attention" + FOUR_BITS, "1 × 80 GB"): "8,970 tok/s",
    ("mixtral-8x22b", "LoRA r16 on attention" + FOUR_BITS, "1 × 141 GB"): "2,381 tok/s",
    ("qwen3-235b-a22b", "LoRA r16 on attention" + FOUR_BITS, "1 × 141 GB"): "3,011 tok/s",
}


# Cards that run tier sm80, by their data sheets: TFLOP/s of dense bfloat16 products with float32 sums, by mma.sync and by
# cuBLASLt; GB/s of memory; GB. B200: there is no published rate of mma.sync, for which the H200's by multiprocessor (132,
# 148) and the same clock is assumed.
H200 = (613, 989.4, 4800)  # mma.sync: 62 %, kernels/cuda/sm80/product_cuda.h
SM80_CARDS = [("A100 80 GB SXM", (312, 312, 2039), 80), ("RTX 4090", (165.2, 165.2, 1008), 24),
              ("RTX 5090", (209.5, 209.5, 1792), 32), ("L40S", (362, 362, 864), 48),
              ("B200", (H200[0] * 148 / 132, 2250, 8000), 180)]
STEPS = [("lora-sm80", "Qwen3-30B-A3B, LoRA on attention, 4 × 4096"),
         ("loraall-nf4-sm80", "the same, attention and experts, base in nf4"),
         ("lora-nf4-sm80", "the same, LoRA on attention, 1 × 4096, base in nf4, all recomputed"),
         ("mixtral-sm80", "Mixtral-8x7B, LoRA on attention, 2 × 4096")]
ON_A_CPU = """
## LoRA r16 on attention and every expert, on a CPU

GB, every block recomputed (`hone estimate NAME device=cpu gradient_checkpointing=true`, with `expert_weight_dtype: int8` in the second
column). No step of a model this large has been measured on a CPU; beside a GPU it can compute the experts
([memory.md](memory.md#experts-on-the-cpu)).
"""

PREDICTED = """
## Predicted speed on other GPUs

**Predicted, not measured**: Hone has run on no GPUs but H100 and H200. Steps with the kernels of tier sm80 have been measured there
([2026-11-24](../bench/results/h200-tiers-2026-11-24.jsonl), [2026-11-26](../bench/results/h200-tiers-2026-11-26.jsonl); the kernels alone:
[experts](../bench/results/sm80-kernels-2026-11-23.txt), [attention](../bench/results/h100-attention-sm80-2026-11-26.txt)). A step is a mix of
kernels that scale by the peak of mma.sync with float32 sums, by that of cuBLASLt's products, or by the rate of memory: it lies between the
least and the greatest of the three ratios. "–": the plan does not fit without offloading. Peaks are those of
data sheets; of mma.sync on a B200, the H200's by multiprocessor.
"""


def predictions():
    """The last section: measured kernels and steps of tier sm80, scaled to other cards."""
    rows = {}
    for day in ("24", "26"):  # later ones replace earlier ones
        with open(f"bench/results/h200-tiers-2026-11-{day}.jsonl", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                rows[row["row"]] = row
    print(PREDICTED)
    names = " | ".join(name for name, *_ in SM80_CARDS)
    print(f"| | H200 | {names} |")
    print("|---" * (len(SM80_CARDS) + 2) + "|")
    peaks = " | ".join(f"{mma:.0f}; {dense:.0f}; {memory:,}" for _, (mma, dense, memory), _ in SM80_CARDS)
    print(f"| TFLOP/s of mma.sync; of cuBLASLt; GB/s | 613; 989; 4,800 | {peaks} |")
    print(f"\n| tokens a second | H200, measured | {names} |")
    print("|---" * (len(SM80_CARDS) + 2) + "|")
    for key, what in STEPS:
        row, cells = rows[key], []
        measured = row["tokens_per_second"]
        for _, card, memory in SM80_CARDS:
            ratios = sorted(mine / theirs for mine, theirs in zip(card, H200))
            fits = row["memory"]["plan"] <= memory * 1e9
            cells.append(f"{round(ratios[0] * measured, -2):,.0f} to {round(ratios[-1] * measured, -2):,.0f}" if fits else "–")
        print(f"| {what} | {measured:,.0f} | " + " | ".join(cells) + " |")


def plan(hone, model, keys, ranks, device="cuda"):
    """Bytes of the device and of host memory, for each rank."""
    command = [hone, "estimate", model, f"device={device}", "--memory", "1000000GB", "--ranks", str(ranks), "--json", *keys]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    return json.loads(run.stdout)["configured"]


def on_a_cpu(hone):
    """A section: LoRA on a CPU, whose memory is the host's."""
    print(ON_A_CPU)
    print("| model | bfloat16 | experts of 8 bits | model | bfloat16 | experts of 8 bits |\n" + "|---" * 6 + "|")
    rows = []
    for model in [name for name in MODELS if name not in DENSE]:
        keys = ["gradient_checkpointing=true", "lora_target_modules=[attention,all-experts]", *ALL]
        plans = [plan(hone, model, keys + more, 1, "cpu") for more in ([], ["expert_weight_dtype=int8"])]
        rows.append(" | ".join([model] + [f"{entry['total'] / 1e9:.0f}" for entry in plans]))
    half = (len(rows) + 1) // 2
    for left, right in itertools.zip_longest(rows[:half], rows[half:], fillvalue=" | | "):
        print(f"| {left} | {right} |")


def main():
    if sys.argv[1] == "--predictions":
        return predictions()
    if sys.argv[1] == "--cpu":
        return on_a_cpu(sys.argv[2])
    hone = sys.argv[1]
    plans = {}

    def cell(model, method, keys, ladder, machine):
        name, ranks, memory = machine
        for letter, (setting, who) in ladder.items():
            if who != "any" and (who == "several") != (ranks > 1):
                continue
            key = (model, method, letter, ranks)
            if key not in plans:
                targets = []
                if " every expert or MLP" in method:
                    targets = ["lora_target_modules=" + ("all-linear" if model in DENSE else "[attention,all-experts]")]
                base = ["base_weight_dtype=" + PACKED.get(model, "nf4")] if method.endswith(FOUR_BITS) else []
                plans[key] = plan(hone, model, keys + targets + base + setting, ranks)
            entry = plans[key]
            if entry["total"] <= memory * 1e9 and entry["host"] <= HOST_GB_PER_GPU * 1e9:
                host = f"+{entry['host'] / 1e9:.0f}" if entry["host"] > 0 else ""
                speed = MEASURED.get((model, method, name))
                return f"{letter} {entry['total'] / 1e9:.0f}{host}" + (f"; {speed}" if speed else "")
        return "–"

    print(HEAD)
    for method, keys, ladder, machines in METHODS:
        print(f"\n## {method[0].upper()}{method[1:]}\n")
        print("| model | " + " | ".join(name for name, _, _ in machines) + " |")
        print("|---" * (len(machines) + 1) + "|")
        everywhere = []
        for model in MODELS:
            cells = [cell(model, method, keys, ladder, machine) for machine in machines]
            if all(re.fullmatch(r"a \d+", text) for text in cells):  # the fastest setting fits on all of them
                everywhere.append(f"{model} ({cells[0][2:]} to {max(int(text[2:]) for text in cells)} GB)")
                continue
            print(f"| {model} | " + " | ".join(cells) + " |")
        if everywhere:
            print(f"\nWith setting a everywhere: {', '.join(everywhere)}.")
    on_a_cpu(hone)
    predictions()


if __name__ == "__main__":
    main()
