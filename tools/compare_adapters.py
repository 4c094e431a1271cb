"""Trains adapters of reference cases with Hone and compares base + adapter in PEFT with the model that `hone merge` writes.

    python3 tools/compare_adapters.py build/hone tests/fixtures/goldens/qwen3_moe [more cases]

Needs torch, transformers and peft. Each case is trained in float32: LoRA on attention, and where the model has experts on
attention and every expert with adapters of their own (written as PEFT's target_parameters), and with a shared A. Prints the largest difference
of logits over the largest logit, and what the adapter changed; exit code 1 if a difference exceeds 2e-5.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file

from case_model import NOT_FOR_PEFT

BOUND = 2e-5  # of two float32 forward passes, as for the logits of the cases
KINDS = {
    "attention": ["lora_target_modules=attention"],
    "split": ["lora_target_modules=[attention,all-experts]", "expert_lora=split", "adapter_layout=target_parameters"],
    "shared": ["lora_target_modules=[attention,all-experts]", "expert_lora=shared"],
}


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stderr or done.stdout}")


def load(folder):
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.set_experts_implementation("eager")
    return model.eval()


@torch.no_grad()
def compare(hone, case, kind, options, work):
    batches = load_file(case / "batches.safetensors")
    ids, labels = batches["input_ids"], batches["labels"]
    rows = [{"input_ids": ids[i, b].tolist(), "labels": labels[i, b].tolist()} for i in range(4) for b in range(2)]
    left_out = NOT_FOR_PEFT.get(json.loads((case / "model" / "config.json").read_text())["model_type"])
    excluded = [f"lora_exclude_modules=[{','.join(left_out)}]"] if left_out else []
    data = work / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(hone, "train", f"model_name_or_path={case / 'model'}", f"datasets={data}", "finetuning_type=lora", "lora_r=4",
        "max_length=256", "dtype=float32", "max_steps=3", "learning_rate=2e-2", "warmup_steps=0", "packing=false",
        "device=cpu", f"output_dir={work / kind}", *options, *excluded)
    run(hone, "merge", "--model", case / "model", "--adapter", work / kind, "--output", work / "merged" / kind)
    base = load(case / "model")
    before = base(input_ids=ids[10]).logits
    adapted = PeftModel.from_pretrained(base, work / kind).eval()(input_ids=ids[10]).logits
    merged = load(work / "merged" / kind)(input_ids=ids[10]).logits
    scale = merged.abs().max()
    return ((adapted - merged).abs().max() / scale).item(), ((before - merged).abs().max() / scale).item()


worst = 0.0
hone = pathlib.Path(sys.argv[1])
for case in map(pathlib.Path, sys.argv[2:]):
    experts = any(".experts." in name for name in load_file(case / "model" / "model.safetensors"))
    for kind, options in KINDS.items():
        if kind != "attention" and not experts:
            continue
        with tempfile.TemporaryDirectory() as work:
            difference, change = compare(hone, case, kind, options, pathlib.Path(work))
        print(f"{case.name} {kind}: {difference:.1e}, changed by {change:.1e}", flush=True)
        worst = max(worst, difference)
sys.exit(worst > BOUND)
