#!/usr/bin/env python3
"""Makes a reference case for `hone verify` from a checkpoint of your own, with transformers and peft.

    pip install torch transformers peft safetensors
    python3 tools/make_case.py MODEL_DIR CASE_DIR [--text FILE] [--rows 2] [--length 48] [--steps 20] [--seed 1]
    hone verify CASE_DIR

Everything is computed in float32 on the CPU, so the model should be small (cut a large one to a few layers first).
src/app/verify/golden_case.h lists the files of a case.
"""
import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

import case_rows
from case_model import EXPERTS, FIRST_OF_EXPERTS, IGNORED, NOT_FOR_PEFT, forward, gradients, load
from case_rows import ALPHA, PROMPT, RANK
from case_runs import is_comparable, measure_noise, show, train_run

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "in_proj", "out_proj")
NOT_TRAINED = ("vision_tower", "mm_projector")
DRAWS = 5  # of batches, before a case is given up whose tokens are too near a tie


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("case", type=Path)
    parser.add_argument("--text", type=Path, help="a text whose tokens are used, instead of random ones")
    parser.add_argument("--rows", type=int, default=2, help="rows of a batch")
    parser.add_argument("--length", type=int, default=48, help="tokens of a row")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of each trajectory (at least 7 batches are made)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noise-seeds", type=int, default=3, help="repetitions of each row on weights half an ulp off")
    parser.add_argument("--no-aux", action="store_true", help="no auxiliary loss: transformers cannot compute that of GraniteMoe")
    return parser.parse_args()


class Tokens:
    """Random tokens, or pieces of a text at random places."""

    def __init__(self, generator, vocab, model, text):
        self.generator, self.vocab, self.text = generator, vocab, None
        if text:
            self.text = torch.tensor(AutoTokenizer.from_pretrained(model)(text.read_text(), verbose=False).input_ids)

    def draw(self, *shape):
        if self.text is None:
            return torch.randint(0, self.vocab, shape, generator=self.generator)
        length = shape[-1]
        if len(self.text) <= length:
            raise SystemExit(f"the text has {len(self.text)} tokens, and a row {length}: give a longer --text")
        count = torch.Size(shape[:-1]).numel()
        begins = torch.randint(0, len(self.text) - length, (count,), generator=self.generator)
        return torch.stack([self.text[begin:begin + length] for begin in begins]).reshape(shape)


def make_batches(tokens, count, rows, length):
    """A prompt of varying length at the start of each row is not trained on."""
    ids = tokens.draw(count, rows, length)
    labels = ids.clone()
    for i in range(count):
        for row in range(rows):
            prompt = 0 if (i + row) % 5 == 0 else 1 + (7 * i + 3 * row) % max(2, length // 3)
            labels[i, row, :prompt] = IGNORED
    return ids, labels


def make_rows(path, tokens, generator, aux, args):
    """The inputs and the rows that are computed once, with their noise: of the first batches whose noise is no tie's."""
    model = load(path)
    adapter = case_rows.make_split_adapter(model, generator)
    for _ in range(DRAWS):
        ids, labels = make_batches(tokens, max(7, args.steps), args.rows, args.length)
        sizes = [max(2, args.length // 3), max(2, args.length // 5), args.length // 2 + 6, 5]
        inputs = {"tokens": ids, "labels": labels, "texts": [tokens.draw(n).tolist() for n in sizes],
                  "prompt": ids[0, 0, :PROMPT].tolist(), "adapter": adapter}
        inputs["continuation"] = case_rows.continuation(model, inputs["prompt"])
        rows = case_rows.compute(model, inputs, aux)
        noise, certain = case_rows.measure_noise(path, rows, inputs, aux, args.noise_seeds)
        case_rows.show(noise, certain)
        if case_rows.is_comparable(noise, certain):
            return inputs, rows, noise, certain
        print("rows: that is too much to compare; other tokens")
    raise SystemExit(f"the reference itself is too unsure in each of {DRAWS} draws of tokens: cut the model to fewer layers, or "
                     "give --text, whose tokens the model knows")


def bfloat16_cost(path, tokens, labels, aux, reference):
    """How far transformers itself moves from float32 when it runs in bfloat16."""
    model = load(path, torch.bfloat16)
    out = forward(model, tokens[0], labels[0], aux)
    out.loss.backward()
    error = {name: ((g - reference[name]).norm() / reference[name].norm().clamp_min(1e-30)).item()
             for name, g in gradients(model).items() if name in reference}
    return {"loss": out.loss.item(), "gradient_error": error}


def make_adapter(case, kind, generator):
    """The adapter that a run starts from; its B is not zero, and magnitudes are not norms."""
    from peft import LoraConfig, get_peft_model
    model = load(case / "model")
    there = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules()}
    there -= set(NOT_FOR_PEFT.get(model.config.model_type, ()))
    options = {"r": RANK, "lora_alpha": ALPHA, "target_modules": [name for name in ATTENTION if name in there]}
    if left_out := [part for part in NOT_TRAINED if any(part in name for name, _ in model.named_modules())]:
        options["exclude_modules"] = f".*({'|'.join(left_out)}).*"
    if kind == "lora_experts":
        parameters = [name for name, _ in model.named_parameters()]
        options["target_parameters"] = [weight for weight in EXPERTS if any(name.endswith(weight) for name in parameters)]
    if kind == "lora_dora":
        options["use_dora"] = True
    adapted = get_peft_model(model, LoraConfig(**options))
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=generator) * 0.02)
            if "lora_magnitude_vector" in name:
                p.mul_(1 + 0.1 * torch.randn(p.shape, generator=generator))
    adapted.save_pretrained(case / f"{kind}_init")


def make_run(case, kind, tokens, labels, aux, seeds):
    """A run with its noise. Where that says nothing any more the run gets half the steps."""
    while len(tokens):
        run = train_run(case, kind, tokens, labels, aux)
        run["noise"] = measure_noise(case, kind, run, tokens, labels, aux, seeds)
        show(kind, run["noise"])
        if is_comparable(run["noise"]):
            return run
        tokens, labels = tokens[:len(tokens) // 2], labels[:len(labels) // 2]
        print(f"{kind}: that is too much to compare; {len(tokens)} steps instead")
    raise SystemExit(f"{kind}: not one step can be compared; choose another --seed")


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    if args.case.exists():
        raise SystemExit(f"{args.case} exists: remove it or choose another folder")
    args.case.mkdir(parents=True)
    shutil.copytree(args.model, args.case / "model")
    path = args.case / "model"
    model = load(path)
    vocab = model.config.get_text_config().vocab_size
    fused = any(name.endswith(FIRST_OF_EXPERTS) for name, _ in model.named_parameters())
    # Where a bias corrects the choice, the auxiliary loss of transformers counts other experts than are chosen.
    corrected = any(name.endswith("e_score_correction_bias") for name in model.state_dict())
    aux = fused and hasattr(model.config.get_text_config(), "router_aux_loss_coef") and not corrected and not args.no_aux
    expected = {"arch": model.config.architectures, "aux": aux}
    del model
    inputs, rows, noise, certain = make_rows(path, Tokens(generator, vocab, args.model, args.text), generator, aux, args)
    tokens, labels = inputs["tokens"], inputs["labels"]
    save_file({"input_ids": tokens, "labels": labels}, args.case / "batches.safetensors")
    case_rows.write(args.case, rows, inputs)
    expected |= case_rows.expected_of(rows, inputs, noise, certain)
    expected["bfloat16"] = bfloat16_cost(path, tokens, labels, aux, rows["gradients"])
    del rows
    steps = slice(0, args.steps)
    adapters = ("lora_attention", "lora_dora", *(["lora_experts"] if fused else []))
    for kind in adapters:
        make_adapter(args.case, kind, generator)
    for kind in (*adapters, "full"):
        expected[kind] = make_run(args.case, kind, tokens[steps], labels[steps], aux, args.noise_seeds)
    for readme in args.case.rglob("README.md"):
        readme.unlink()
    (args.case / "expected.json").write_text(json.dumps(expected, indent=1))
    print(f"wrote {args.case}: loss {expected['loss']:.5f}; now run: hone verify {args.case}")


if __name__ == "__main__":
    main()
