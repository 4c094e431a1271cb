#!/usr/bin/env python3
"""Writes the keys that PEFT writes to a LoRA's adapter_config.json, with their defaults, to
tests/fixtures/peft_keys.json. A test compares them with the table in src/weights/adapter_keys.cpp.

    pip install peft
    python3 tools/make_peft_keys.py
"""
import dataclasses
import json
import os

import peft

fields = {f.name for f in dataclasses.fields(peft.LoraConfig)}
written = peft.LoraConfig().to_dict()
keys = {name: written.get(name) for name in sorted(fields)}
for name, value in keys.items():
    if isinstance(value, (set, frozenset)):
        keys[name] = sorted(value)
path = os.path.join(os.path.dirname(__file__), "../tests/fixtures/peft_keys.json")
with open(path, "w") as file:
    json.dump({"peft_version": peft.__version__, "keys": keys}, file, indent=1, sort_keys=True)
    file.write("\n")
