#!/usr/bin/env python3
"""Writes tests/fixtures/nf4.json: matrices as bitsandbytes quantises and dequantises them on a CPU.

    python tools/make_nf4_fixture.py tests/fixtures/nf4.json        # needs torch and bitsandbytes 0.50

Bytes are in hexadecimal; bfloat16 numbers as two bytes and float32 as four, the lowest first.
"""
import json
import sys

import bitsandbytes
import torch
from bitsandbytes import functional

SHAPES = [[48, 96], [3, 37], [64, 520], [1, 64], [7, 128]]


def hexadecimal(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes().hex()


def case(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(shape, generator=generator) * 0.02).to(torch.bfloat16)
    if shape == [7, 128]:
        weight[2] = 0  # blocks of zeros
        weight[4, 5] = 3.0  # a block with a scale far from the others
    codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
    return {
        "shape": shape,
        "weight": hexadecimal(weight),
        "codes": hexadecimal(codes),
        "scales": hexadecimal(state.absmax),
        "nested": hexadecimal(state.state2.absmax),
        "mean": hexadecimal(state.offset.reshape(1)),
        "dequantised": hexadecimal(functional.dequantize_4bit(codes, state)),
    }


def main():
    fixture = {
        "made_with": {"bitsandbytes": bitsandbytes.__version__, "torch": torch.__version__},
        "scale_map": hexadecimal(functional.create_dynamic_map()),
        "cases": [case(shape, seed) for seed, shape in enumerate(SHAPES)],
    }
    with open(sys.argv[1], "w") as file:
        json.dump(fixture, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
