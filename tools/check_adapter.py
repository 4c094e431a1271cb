"""Loads an adapter with transformers + PEFT and compares its logits with those of a reference case.

    python tools/check_adapter.py CASE ADAPTER

CASE is a folder of a reference case with split_adapter/expected.safetensors (src/app/verify/golden_case.h); ADAPTER the
same adapter in any layout that PEFT reads. Prints the relative difference of the logits; exit code 1 if it is more than
2e-5, 77 if torch, transformers or peft are missing.
"""
import sys

try:
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from case_model import class_of
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def main(case, adapter):
    batch = load_file(f"{case}/batches.safetensors")["input_ids"][0]
    expected = load_file(f"{case}/split_adapter/expected.safetensors")["logits"]
    model = class_of(f"{case}/model").from_pretrained(f"{case}/model", dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        base = model(batch).logits
        logits = PeftModel.from_pretrained(model, adapter)(batch).logits
    difference = ((logits - expected).norm() / expected.norm()).item()
    effect = ((base - expected).norm() / expected.norm()).item()
    print(f"logits differ by {difference:.1e} of their norm; the adapter moves them by {effect:.1e}")
    return 0 if difference < 2e-5 < effect else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
