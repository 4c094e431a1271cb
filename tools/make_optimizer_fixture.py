#!/usr/bin/env python3
"""Writes tests/fixtures/optimizers.json: what optimizers make of given gradients, in float64.

    python tools/make_optimizer_fixture.py tests/fixtures/optimizers.json        # needs torch and transformers

SGD is torch's, Adafactor transformers'; Lion is algorithm 2 of arXiv:2302.06675.
"""
import json
import sys

import torch
import transformers
from transformers.optimization import Adafactor

SHAPES = [[3], [5, 7], [2, 4, 6]]
STEPS = 4
LEARNING_RATE = 0.0078125


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = beta1 * m + (1 - beta1) * p.grad
                p -= group["lr"] * (torch.sign(c) + group["weight_decay"] * p)
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def adafactor(**options):
    defaults = {"scale_parameter": False, "relative_step": False, "lr": LEARNING_RATE}
    return lambda params: Adafactor(params, **{**defaults, **options})


def sgd(**options):
    return lambda params: torch.optim.SGD(params, lr=LEARNING_RATE, **options)


# What hone is told, and the optimizer that does it.
CASES = [
    ({"optim": "sgd"}, sgd()),
    ({"optim": "sgd", "weight_decay": 0.5, "momentum": 0.75}, sgd(weight_decay=0.5, momentum=0.75)),
    ({"optim": "sgd", "weight_decay": 0.5, "momentum": 0.75, "nesterov": True},
     sgd(weight_decay=0.5, momentum=0.75, nesterov=True)),
    ({"optim": "lion", "weight_decay": 0.5, "beta1": 0.9, "beta2": 0.99},
     lambda params: Lion(params, LEARNING_RATE, (0.9, 0.99), 0.5)),
    ({"optim": "adafactor"}, adafactor()),
    ({"optim": "adafactor", "weight_decay": 0.5, "clip_threshold": 0.5},
     adafactor(weight_decay=0.5, clip_threshold=0.5)),
    ({"optim": "adafactor", "beta1": 0.75, "decay_rate": -0.5}, adafactor(beta1=0.75, decay_rate=-0.5)),
    ({"optim": "adafactor", "weight_decay": 0.5, "scale_parameter": True, "relative_step": True, "warmup_init": True},
     adafactor(weight_decay=0.5, scale_parameter=True, relative_step=True, warmup_init=True, lr=None)),
    ({"optim": "adafactor", "scale_parameter": True}, adafactor(scale_parameter=True)),
]


def numbers(generator, shape, scale):
    # Multiples of a 64th are exact in float32.
    return (torch.randn(shape, generator=generator) * scale * 64).round().double() / 64


def flat(tensors):
    return [value for tensor in tensors for value in tensor.flatten().tolist()]


def main():
    generator = torch.Generator().manual_seed(1)
    start = [numbers(generator, shape, 1.0) for shape in SHAPES]
    gradients = [[numbers(generator, shape, 2.0) for shape in SHAPES] for _ in range(STEPS)]
    cases = []
    for options, make in CASES:
        params = [torch.nn.Parameter(value.clone()) for value in start]
        optimizer = make(params)
        after = []
        for step in gradients:
            for param, gradient in zip(params, step):
                param.grad = gradient.clone()
            optimizer.step()
            after.append([float(f"{value:.10g}") for value in flat(param.detach() for param in params)])
        cases.append({"options": options, "after": after})
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"source": f"torch {torch.__version__}, transformers {transformers.__version__}", "shapes": SHAPES,
                   "learning_rate": LEARNING_RATE, "start": flat(start),
                   "gradients": [flat(step) for step in gradients], "cases": cases}, file)
        file.write("\n")


main()
