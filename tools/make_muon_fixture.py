#!/usr/bin/env python3
"""Writes tests/fixtures/muon.json: what torch.optim.Muon makes of given gradients.

    python tools/make_muon_fixture.py tests/fixtures/muon.json        # needs torch 2.9 or newer

torch runs Newton-Schulz in bfloat16. `after` is its own code in float64, Tensor.bfloat16 being a copy; `bfloat16` is the
end of the same steps as torch takes them, float32 around bfloat16.
"""
import json
import sys
from unittest import mock

import torch

SHAPES = [[15, 6], [5, 14], [8, 8], [1, 7]]
STEPS = 3
LEARNING_RATE = 0.0625

CASES = [
    {},
    {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.5},
    {"nesterov": False, "momentum": 0.75, "weight_decay": 0.5},
    {"ns_steps": 3},
]


def numbers(generator, shape):
    # Multiples of a 64th are exact in float32.
    return (torch.randn(shape, generator=generator) * 64).round().double() / 64


def flat(tensors, digits):
    return [float(f"{value:.{digits}g}") for tensor in tensors for value in tensor.flatten().tolist()]


def run(options, start, gradients, dtype):
    params = [torch.nn.Parameter(value.to(dtype, copy=True)) for value in start]
    optimizer = torch.optim.Muon(params, lr=LEARNING_RATE, **{"weight_decay": 0, **options})
    after = []
    for step in gradients:
        for param, gradient in zip(params, step):
            param.grad = gradient.to(dtype)
        optimizer.step()
        after.append([param.detach().clone() for param in params])
    return after


def main():
    generator = torch.Generator().manual_seed(1)
    start = [numbers(generator, shape) for shape in SHAPES]
    gradients = [[numbers(generator, shape) for shape in SHAPES] for _ in range(STEPS)]
    cases = []
    for options in CASES:
        with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
            after = run(options, start, gradients, torch.float64)
        rounded = run(options, start, gradients, torch.float32)[-1]
        cases.append({"options": options, "after": [flat(step, 10) for step in after], "bfloat16": flat(rounded, 6)})
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"source": f"torch {torch.__version__}", "shapes": SHAPES, "learning_rate": LEARNING_RATE,
                   "start": flat(start, 10), "gradients": [flat(step, 10) for step in gradients], "cases": cases}, file)
        file.write("\n")


main()
