#!/usr/bin/env python3
"""Writes docs/fits.md: which model fits which machine, by which method, with which keys.

    tools/fits.py build/hone > docs/fits.md

Every number is a plan of `hone estimate` for a GPU that need not be present; the program must be built with CUDA. For each cell
the settings are tried from the fastest to the most frugal, and the first that fits is shown. Measured tokens a second come from
bench/results.
"""
import json
import subprocess
import sys

MODELS = ["granite-3b-a800m", "olmoe-7b-a1b", "qwen3-8b", "deepseek-v2-lite", "gpt-oss-20b", "qwen3-30b-a3b", "qwen3-32b",
          "qwen3.5-35b-a3b", "mixtral-8x7b", "qwen2-57b-a14b", "qwen3-next-80b-a3b", "glm-4.5-air", "gpt-oss-120b", "mixtral-8x22b",
          "qwen3-235b-a22b", "deepseek-v3"]
MACHINES = [("1 × 24 GB", 1, 24), ("1 × 80 GB", 1, 80), ("2 × 80 GB", 2, 80), ("8 × 80 GB", 8, 80), ("1 × 141 GB", 1, 141),
            ("2 × 141 GB", 2, 141), ("8 × 141 GB", 8, 141)]
CARDS = [(f"1 × {memory} GB", 1, memory) for memory in (12, 16, 24, 32, 48, 80, 141)] + [("8 × 80 GB", 8, 80)]
DENSE = ["qwen3-8b", "qwen3-32b"]
PACKED = {"gpt-oss-20b": "auto", "gpt-oss-120b": "auto"}  # MXFP4 checkpoints; of others the base is rounded to nf4
HOST_GB_PER_GPU = 256  # of host memory, that offloading may use

CHECKPOINTING = ["gradient_checkpointing=true"]
PARAMS, ACTIVATIONS = ["cpu_offload=[params]"], ["cpu_offload=[params,activations]"]
FEW_BITS = ["master_dtype=bfloat16", "grad_dtype=bfloat16", "optim=adamw_8bit"]
IN_BACKWARD = ["optimizer_in_backward=true", "max_grad_norm=0", "nan_policy=stop", "gradient_accumulation_steps=1"]

# letter: (keys, for one rank or several)
LORA = {"a": ([], "any"), "b": (CHECKPOINTING, "any"), "c": (CHECKPOINTING + ["zero_stage=3"], "several"),
        "d": (CHECKPOINTING + PARAMS, "one"), "e": (CHECKPOINTING + ACTIVATIONS, "one"),
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

Written by `tools/fits.py`; every cell is a plan of `hone estimate NAME device=cuda --ranks N` with the keys of its letter, for
documents of 4096 tokens, one at a time. A cell is the first setting of the ladder that fits: its letter, GB (10^9 bytes) on each GPU,
and after a plus sign GB of host memory for each GPU, of which up to 256 are counted on. "–": no setting fits in this version.
A base of 4 bits is `base_weight_dtype: nf4`, of gpt-oss `auto`, which keeps the MXFP4 of its files. Tokens a second are of each GPU, measured on one or two H200 of 141 GB, with the settings in
[benchmarks.md](benchmarks.md), [memory.md](memory.md#host-memory-as-room) and [distributed.md](distributed.md#how-weights-travel);
where a cell has none, nothing was measured. Plans include what CUDA and NCCL take on an H200, which is the only GPU that Hone has run
on so far; there they have been within 1 % of what the driver shows.

Names are those that `hone estimate` and `hone bench step` know; a model of your own: `hone estimate ./FOLDER device=cuda --memory
80GB`, with the keys below.

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
| n | j, and `cpu_offload: [params, optimizer]` |"""

# Tokens a second of each GPU, where the model, the method and the setting have been measured.
MEASURED = {
    ("qwen3-30b-a3b", "LoRA r16 on attention", "1 × 141 GB"): "24,994 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention", "1 × 24 GB"): "7,714 tok/s",
    ("qwen3-30b-a3b", "full", "1 × 141 GB"): "9,435 tok/s",
    ("qwen3-30b-a3b", "full", "2 × 141 GB"): "15,039 tok/s",
    ("qwen3-32b", "full", "2 × 141 GB"): "2,236 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention", "2 × 141 GB"): "25,700 tok/s",
    ("qwen3-30b-a3b", "LoRA r16 on attention and every expert or MLP", "2 × 141 GB"): "23,042 tok/s",
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


def plan(hone, model, keys, ranks):
    """Bytes a GPU and of host memory, for each rank."""
    command = [hone, "estimate", model, "device=cuda", "--memory", "1000000GB", "--ranks", str(ranks), "--json", *keys]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    return json.loads(run.stdout)["configured"]


def main():
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
                host = f" + {entry['host'] / 1e9:.0f}" if entry["host"] > 0 else ""
                speed = MEASURED.get((model, method, name))
                return f"{letter} {entry['total'] / 1e9:.0f}{host}" + (f"; {speed}" if speed else "")
        return "–"

    print(HEAD)
    for method, keys, ladder, machines in METHODS:
        print(f"\n## {method[0].upper()}{method[1:]}\n")
        print("| model | " + " | ".join(name for name, _, _ in machines) + " |")
        print("|---" * (len(machines) + 1) + "|")
        for model in MODELS:
            print(f"| {model} | " + " | ".join(cell(model, method, keys, ladder, machine) for machine in machines) + " |")


if __name__ == "__main__":
    main()
