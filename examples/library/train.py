"""Trains from a configuration, prints each step, and asks the result: python3 examples/library/train.py run.yaml PROMPT"""
import sys

import hone

trained = hone.train(sys.argv[1], on_step=lambda row: print(row["step"], row["loss"]))
with hone.Model(trained["output_dir"]) as model:
    model.generate(sys.argv[2], max_new_tokens=64, on_text=lambda text: print(text, end="", flush=True))
print()
