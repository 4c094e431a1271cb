"""Trains adapters of reference cases with Hone, makes others with PEFT, and compares base + adapter in PEFT with the model that `hone merge` writes.

    python3 tools/compare_adapters.py build/hone tests/fixtures/goldens/qwen3_moe [more cases]

Needs torch, transformers and peft. Everything is in float32. Hone trains LoRA on attention, and where the model has experts on attention and every
expert: with adapters of their own (written as PEFT's target_parameters), and with a shared A. PEFT makes an adapter of all its linear layers and of
the experts (target_parameters), of random values. Prints the largest difference of logits over the largest logit, and what the adapter changed;
`hone merge --compare-logits` computes base + adapter in Hone, too. Exit code 1 if a difference exceeds 2e-5.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

from case_model import EXPERTS, NOT_FOR_PEFT, load

BOUND = 2e-5  # of two float32 forward passes, as for the logits of the cases
KINDS = {
    "attention": ["lora_target_modules=attention"],
    "split": ["lora_target_modules=[attention,all-experts]", "expert_lora=split", "adapter_layout=target_parameters"],
    "shared": ["lora_target_modules=[attention,all-experts]", "expert_lora=shared"],
}
TOWERS = r".*(visual|vision|audio|mm_projector|multi_modal_projector).*"  # Hone trains text models


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))}\n{done.stderr or done.stdout}")


def left_out(case):
    return NOT_FOR_PEFT.get(json.loads((case / "model" / "config.json").read_text())["model_type"], ())


def train(hone, case, options, data, adapter):
    batches = load_file(case / "batches.safetensors")
    ids, labels = batches["input_ids"], batches["labels"]
    rows = [{"input_ids": ids[i, b].tolist(), "labels": labels[i, b].tolist()} for i in range(4) for b in range(2)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    excluded = [f"lora_exclude_modules=[{','.join(left_out(case))}]"] if left_out(case) else []
    run(hone, "train", f"model_name_or_path={case / 'model'}", f"datasets={data}", "finetuning_type=lora", "lora_r=4",
        "max_length=256", "dtype=float32", "max_steps=3", "learning_rate=2e-2", "warmup_steps=0", "packing=false",
        "device=cpu", f"output_dir={adapter}", *options, *excluded)


def make(case, adapter):
    """An adapter of PEFT, of everything that its `all-linear` and target_parameters take."""
    torch.manual_seed(11)
    base = load(case / "model")
    experts = [name for name in EXPERTS if any(parameter.endswith(name) for parameter, _ in base.named_parameters())]
    excluded = "|".join([TOWERS, *(rf".*\.{name}" for name in left_out(case))])
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", exclude_modules=excluded, target_parameters=experts or None)
    model = get_peft_model(base, config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.03 * torch.randn_like(parameter))
    model.save_pretrained(adapter)


@torch.no_grad()
def compare(hone, case, adapter, merged):
    run(hone, "merge", "--model", case / "model", "--adapter", adapter, "--output", merged, "--compare-logits")
    ids = load_file(case / "batches.safetensors")["input_ids"][10]
    base = load(case / "model").eval()
    before = base(input_ids=ids).logits
    adapted = PeftModel.from_pretrained(base, adapter).eval()(input_ids=ids).logits
    after = load(merged).eval()(input_ids=ids).logits
    scale = after.abs().max()
    return ((adapted - after).abs().max() / scale).item(), ((before - after).abs().max() / scale).item()


worst = 0.0
hone = pathlib.Path(sys.argv[1])
for case in map(pathlib.Path, sys.argv[2:]):
    experts = any(name.endswith(EXPERTS) for name, _ in load(case / "model").named_parameters())
    for kind in [*KINDS, "peft"]:
        if kind in ("split", "shared") and not experts:
            continue
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            if kind == "peft":
                make(case, work / kind)
            else:
                train(hone, case, KINDS[kind], work / "data.jsonl", work / kind)
            difference, change = compare(hone, case, work / kind, work / "merged")
        print(f"{case.name} {kind}: {difference:.1e}, changed by {change:.1e}", flush=True)
        worst = max(worst, difference)
sys.exit(worst > BOUND)
