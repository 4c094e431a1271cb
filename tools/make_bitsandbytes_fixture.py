#!/usr/bin/env python3
"""Writes tests/fixtures/quantized/bitsandbytes: matrices as bitsandbytes quantises them, in the tensors that transformers
saves for them, and expected.safetensors with the numbers that bitsandbytes dequantises from them.

    python tools/make_bitsandbytes_fixture.py tests/fixtures/quantized/bitsandbytes    # torch, safetensors, bitsandbytes 0.50
"""
import json
import pathlib
import sys

import torch
from bitsandbytes import functional
from safetensors.torch import save_file

ATTENTION = "model.layers.0.self_attn."
# Name, shape, code, block, nested scales. Columns that are a multiple of 32 and not of 64 are avoided: the vectorised
# dequantisation of bitsandbytes 0.50.2 on CPUs takes scales of other blocks for them, unlike its CUDA kernels.
FOUR_BITS = [
    (ATTENTION + "q_proj.weight", [48, 128], "nf4", 64, True),
    (ATTENTION + "k_proj.weight", [32, 64], "nf4", 64, False),
    (ATTENTION + "v_proj.weight", [7, 37], "fp4", 64, True),
    ("model.layers.0.mlp.up_proj.weight", [64, 520], "nf4", 64, True),
    ("model.layers.0.mlp.gate_proj.weight", [64, 520], "nf4", 128, True),
    ("mtp.proj.weight", [6, 66], "nf4", 64, True),
]


def weight(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 0.02


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tensors, expected = {"model.norm.weight": torch.arange(1.0, 6.0)}, {}
    for seed, (name, shape, code, block, nested) in enumerate(FOUR_BITS):
        codes, state = functional.quantize_4bit(
            weight(shape, seed), blocksize=block, quant_type=code, compress_statistics=nested
        )
        tensors[name] = codes
        tensors |= {f"{name}.{key}": value.clone() for key, value in state.as_dict(packed=True).items()}
        expected[name] = functional.dequantize_4bit(codes, state)
    name = ATTENTION + "o_proj."
    codes, scales, _ = functional.int8_vectorwise_quant(weight([17, 33], 9).to(torch.float16))
    tensors |= {name + "weight": codes, name + "SCB": scales, name + "weight_format": torch.tensor(0, dtype=torch.uint8)}
    expected[name + "weight"] = functional.int8_vectorwise_dequant(codes, scales)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(expected, folder / "expected.safetensors")
    quantization = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    quantization["bnb_4bit_use_double_quant"] = True
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}, indent=1) + "\n")


if __name__ == "__main__":
    main()
