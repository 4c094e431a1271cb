#!/usr/bin/env python3
"""Writes tests/fixtures/schedules.json: learning rates of transformers' schedules, step by step.

    python tools/make_schedule_fixture.py tests/fixtures/schedules.json        # needs torch and transformers
"""
import json
import sys

import torch
import transformers
from transformers import get_scheduler

PEAK = 3e-4
TOTAL = 50
# What hone is told, and what get_scheduler is told besides the warm-up.
CASES = [
    ({"lr_scheduler_type": "linear", "warmup_steps": 5}, {}),
    ({"lr_scheduler_type": "cosine", "warmup_steps": 5}, {}),
    ({"lr_scheduler_type": "cosine", "warmup_steps": 0, "num_cycles": 1.5}, {"num_cycles": 1.5}),
    ({"lr_scheduler_type": "cosine_with_min_lr", "warmup_steps": 4, "min_lr": 2e-5}, {"min_lr": 2e-5}),
    ({"lr_scheduler_type": "cosine_with_restarts", "warmup_steps": 5}, {}),
    ({"lr_scheduler_type": "cosine_with_restarts", "warmup_steps": 7, "num_cycles": 3}, {"num_cycles": 3}),
    ({"lr_scheduler_type": "polynomial", "warmup_steps": 5}, {}),
    ({"lr_scheduler_type": "polynomial", "warmup_steps": 3, "power": 2.5, "lr_end": 1e-5},
     {"power": 2.5, "lr_end": 1e-5}),
    ({"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 6}, {}),
    ({"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 0}, {}),
    ({"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 6, "timescale": 20}, {"timescale": 20}),
    ({"lr_scheduler_type": "wsd", "warmup_steps": 5, "num_decay_steps": 10}, {"num_decay_steps": 10}),
    ({"lr_scheduler_type": "wsd", "warmup_steps": 5, "num_decay_steps": 12, "decay_type": "cosine",
      "min_lr_ratio": 0.1}, {"num_decay_steps": 12, "decay_type": "cosine", "min_lr_ratio": 0.1}),
    ({"lr_scheduler_type": "wsd", "warmup_steps": 0, "num_decay_steps": 20, "decay_type": "1-sqrt"},
     {"num_decay_steps": 20, "decay_type": "1-sqrt"}),
    ({"lr_scheduler_type": "wsd", "warmup_steps": 5, "num_decay_steps": 10, "num_stable_steps": 15,
      "min_lr_ratio": 0.2}, {"num_decay_steps": 10, "num_stable_steps": 15, "min_lr_ratio": 0.2}),
]
NAMES = {"wsd": "warmup_stable_decay"}


def rates(config, kwargs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    name = config["lr_scheduler_type"]
    scheduler = get_scheduler(NAMES.get(name, name), optimizer, num_warmup_steps=config["warmup_steps"],
                              num_training_steps=TOTAL, scheduler_specific_kwargs=kwargs)
    result = []
    for _ in range(TOTAL):
        result.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return result


cases = [{"config": config, "rates": rates(config, kwargs)} for config, kwargs in CASES]
with open(sys.argv[1], "w") as file:
    json.dump({"transformers": transformers.__version__, "learning_rate": PEAK, "total_steps": TOTAL, "cases": cases},
              file)
    file.write("\n")
