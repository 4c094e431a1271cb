#!/usr/bin/env python3
"""The training runs of a reference case with transformers and peft, and how far they move by themselves.

Where two experts of a token are nearly tied, the last bit of a weight decides which one is taken, and a run goes on
differently from there. The noise of a run says by how much: it is made again from weights that are half an ulp off, once a
seed, and compared with the run of the case by the measures of `hone verify`. tools/make_case.py stores it with each run.
Of a case that exists, this tool measures it:

    python3 tools/case_runs.py CASE_DIR lora_experts [lora_attention] [lora_dora] [full] [rows] [--noise-seeds 3]
"""
import argparse
import itertools
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import case_rows
from case_model import forward, jitter, load, norm, plain, ratio, shorten

RATES = {"full": (3e-4, 0.5), "lora_attention": (2e-3, 0.05), "lora_experts": (2e-3, 0.05),
         "lora_dora": (2e-3, 0.05)}  # learning rate, weight decay
NUMBERS = ("loss", "aux_loss", "grad_norm")
# Noise above these is no bound (kMostNumberNoise and kMostChangeNoise of src/app/verify/golden_case.h).
MOST_NUMBER_NOISE, MOST_CHANGE_NOISE = 0.02, 0.2


def trajectory(model, parameters, tokens, labels, aux, learning_rate, weight_decay):
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)
    steps = []
    for x, y in zip(tokens, labels):
        out = forward(model, x, y, aux)
        out.loss.backward()
        size = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps.append({"loss": out.loss.item(), "aux_loss": out.aux_loss.item() if aux else None, "grad_norm": size.item()})
    options = {"name": "adamw", "lr": learning_rate, "weight_decay": weight_decay, "betas": [0.9, 0.999], "eps": 1e-8,
               "max_grad_norm": 1.0, "decay_on": "every parameter"}
    return {"optimizer": options, "steps": steps}


class Run:
    """A run of a case before its first step: the model with what it trains, from the case's files."""

    def __init__(self, case, kind):
        self.kind = kind
        self.model = load(case / "model")
        if kind != "full":
            from peft import PeftModel
            self.model = PeftModel.from_pretrained(self.model, case / f"{kind}_init", is_trainable=True)
            self.model.train()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]

    def values(self):
        """What is trained, under the names of the case."""
        if self.kind == "full":
            return plain(dict(self.model.named_parameters()))
        from peft import get_peft_model_state_dict
        return plain(get_peft_model_state_dict(self.model))

    def train(self, tokens, labels, aux):
        return trajectory(self.model, self.parameters, tokens, labels, aux, *RATES[self.kind])


def final_file(case, kind):
    return case / "full_final.safetensors" if kind == "full" else case / f"{kind}_final" / "adapter_model.safetensors"


def train_run(case, kind, tokens, labels, aux):
    """Trains from the case's files and writes what it ends with. Returns the run."""
    run = Run(case, kind)
    result = run.train(tokens, labels, aux)
    if kind == "full":
        save_file(run.values(), final_file(case, kind))
    else:
        run.model.save_pretrained(case / f"{kind}_final")
    return result


def change(initial, final):
    return {name: (final[name] - initial[name]).double() for name in final}


def change_errors(ours, reference):
    """compare_updates of src/app/verify/check.h: over all tensors, and of each."""
    size, elements = norm(reference.values()), sum(tensor.numel() for tensor in reference.values())
    errors = {name: norm([ours[name] - tensor]) for name, tensor in reference.items()}
    share = {name: size * (tensor.numel() / elements)**0.5 for name, tensor in reference.items()}
    tensors = {name: ratio(error, max(norm([reference[name]]), share[name])) for name, error in errors.items()}
    return ratio(sum(error**2 for error in errors.values())**0.5, size), tensors


def measure_noise(case, kind, reference, tokens, labels, aux, seeds):
    """How far the run moves from `reference`, that of the case, when its weights are half an ulp off: for each number of a
    step the largest error of all seeds so far (what a run has left it need not come back to), and of what changed."""
    final = load_file(final_file(case, kind))
    initial = Run(case, kind).values()
    if initial.keys() != final.keys():
        raise SystemExit(f"{kind}: the model that transformers loads from {case} names its tensors otherwise than the case")
    steps = reference["steps"]
    noise = {name: [0.0] * len(steps) for name in NUMBERS if steps[0][name] is not None}
    of_all, of_tensors = 0.0, dict.fromkeys(sorted(final), 0.0)
    for seed in range(1, seeds + 1):
        run = Run(case, kind)
        jitter(run.model, seed)
        start = run.values()
        moved = run.train(tokens[:len(steps)], labels[:len(steps)], aux)["steps"]
        for name, largest in noise.items():
            errors = [ratio(abs(a[name] - b[name]), abs(b[name])) for a, b in zip(moved, steps)]
            noise[name] = [max(pair) for pair in zip(largest, itertools.accumulate(errors, max))]
        # Both changes are from where their run began: the jitter itself is none.
        error, errors = change_errors(change(start, run.values()), change(initial, final))
        of_all = max(of_all, error)
        of_tensors = {name: max(largest, errors[name]) for name, largest in of_tensors.items()}
    return {"seeds": seeds, **{name: [shorten(value) for value in values] for name, values in noise.items()},
            "change": shorten(of_all), "change_of_tensors": {name: shorten(value) for name, value in of_tensors.items()}}


def is_comparable(noise):
    """Whether a run with twice this noise as its bounds could still fail. What is not a number is not comparable."""
    numbers = [value for name in NUMBERS for value in noise.get(name, [])]
    changes = [noise["change"], *noise["change_of_tensors"].values()]
    return all(value <= MOST_NUMBER_NOISE for value in numbers) and all(value <= MOST_CHANGE_NOISE for value in changes)


def show(kind, noise):
    worst = max(noise["change_of_tensors"], key=noise["change_of_tensors"].get)
    numbers = ", ".join(f"{name} {noise[name][-1]:.2g}" for name in NUMBERS if name in noise)
    print(f"{kind}: the reference's own noise in {len(noise['loss'])} steps: {numbers}, change of weights {noise['change']:.2g}, "
          f"of {worst} {noise['change_of_tensors'][worst]:.2g}")


def measure_rows(case, expected, seeds):
    inputs, rows = case_rows.of_case(case, expected)
    noise, certain = case_rows.measure_noise(case / "model", rows, inputs, expected["aux"], seeds)
    case_rows.show(noise, certain)
    if not case_rows.is_comparable(noise, certain):
        raise SystemExit("rows: that is too much to compare them; make the case again with another --seed, or of fewer layers")
    expected["noise"] = noise
    expected["greedy"]["tokens"] = expected["greedy"]["tokens"][:certain]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", type=Path)
    parser.add_argument("runs", nargs="+", choices=["rows", *RATES], help="rows: what is computed without training")
    parser.add_argument("--noise-seeds", type=int, default=3, help="jittered runs of each")
    args = parser.parse_args()
    expected = json.loads((args.case / "expected.json").read_text())
    batches = load_file(args.case / "batches.safetensors")
    for kind in args.runs:
        if kind == "rows":
            measure_rows(args.case, expected, args.noise_seeds)
            continue
        run = expected[kind]
        if RATES[kind] != (run["optimizer"]["lr"], run["optimizer"]["weight_decay"]):
            raise SystemExit(f"{kind}: the case was not made by this version of tools/make_case.py")
        if not final_file(args.case, kind).exists():
            raise SystemExit(f"{kind}: {final_file(args.case, kind)} is missing; if the case is thinned, use the full one")
        noise = measure_noise(args.case, kind, run, batches["input_ids"], batches["labels"], expected["aux"], args.noise_seeds)
        show(kind, noise)
        if not is_comparable(noise):
            raise SystemExit(f"{kind}: that is too much to compare a run of {len(run['steps'])} steps; make the case with fewer --steps")
        run["noise"] = noise
    (args.case / "expected.json").write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    main()
