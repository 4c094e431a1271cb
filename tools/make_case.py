#!/usr/bin/env python3
"""Makes a reference case for `hone verify` from a checkpoint of your own, with transformers and peft.

    pip install torch transformers peft safetensors
    python3 tools/make_case.py MODEL_DIR CASE_DIR [--rows 2] [--length 48] [--steps 20] [--seed 1]
    hone verify CASE_DIR

Everything is computed in float32 on the CPU, so the model should be small (cut a large one to a few layers first).
The format of a case is described in docs/verify.md.
"""
import argparse
import copy
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from case_runs import forward, is_comparable, load, measure_noise, plain, show, train_run

IGNORED = -100
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
RANK, ALPHA = 4, 8


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("case", type=Path)
    parser.add_argument("--rows", type=int, default=2, help="rows of a batch")
    parser.add_argument("--length", type=int, default=48, help="tokens of a row")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of each trajectory (at least 7 batches are made)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noise-seeds", type=int, default=3, help="runs of each trajectory on weights half an ulp off")
    parser.add_argument("--no-aux", action="store_true", help="no auxiliary loss: transformers cannot compute Granite's")
    return parser.parse_args()


def gradients(model):
    return plain({name: p.grad for name, p in model.named_parameters() if p.grad is not None})


def make_batches(generator, count, rows, length, vocab):
    """Random tokens; a prompt of varying length at the start of each row is not trained on."""
    tokens = torch.randint(0, vocab, (count, rows, length), generator=generator)
    labels = tokens.clone()
    for i in range(count):
        for row in range(rows):
            prompt = 0 if (i + row) % 5 == 0 else 1 + (7 * i + 3 * row) % max(2, length // 3)
            labels[i, row, :prompt] = IGNORED
    return tokens, labels


def single_batch(case, model, tokens, labels, aux):
    out = forward(model, tokens[0], labels[0], aux)
    out.loss.backward()
    save_file(plain({"logits": out.logits}), case / "logits.safetensors")
    reference = gradients(model)
    save_file(reference, case / "grads.safetensors")
    model.zero_grad()
    return {"loss": out.loss.item(), "aux_loss": out.aux_loss.item() if aux else None}, reference


def bfloat16_cost(path, tokens, labels, aux, reference):
    """How far transformers itself moves from float32 when it runs in bfloat16."""
    model = load(path, torch.bfloat16)
    out = forward(model, tokens[0], labels[0], aux)
    out.loss.backward()
    error = {name: ((g - reference[name]).norm() / reference[name].norm().clamp_min(1e-30)).item()
             for name, g in gradients(model).items() if name in reference}
    return {"loss": out.loss.item(), "gradient_error": error}


def documents(case, model, generator, length, vocab):
    """Each document alone; packed into one row they must give the same losses and gradients."""
    sizes = [max(2, length // 3), max(2, length // 5), length // 2 + 6, 5]
    texts = [torch.randint(0, vocab, (n,), generator=generator) for n in sizes]
    count = sum(len(text) - 1 for text in texts)
    losses = []
    for text in texts:
        logits = model(input_ids=text[None], use_cache=False).logits[0].float()
        loss = torch.nn.functional.cross_entropy(logits[:-1], text[1:], reduction="none")
        (loss.sum() / count).backward()
        losses.append(loss.tolist())
    save_file(gradients(model), case / "packed_grads.safetensors")
    model.zero_grad()
    return {"input_ids": [text.tolist() for text in texts], "token_losses": losses}


def accumulation(case, model, tokens, labels):
    """Batches 3 to 6 as micro-batches of one step: the sum of all losses over the number of all supervised tokens."""
    picked = [3, 4, 5, 6]
    count = sum(int((labels[i][:, 1:] != IGNORED).sum()) for i in picked)
    total = 0.0
    for i in picked:
        logits = model(input_ids=tokens[i], use_cache=False).logits.float()
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[i][:, 1:].reshape(-1),
                                                 reduction="sum", ignore_index=IGNORED) / count
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
    save_file(gradients(model), case / "accumulation_grads.safetensors")
    model.zero_grad()
    return {"batches": picked, "supervised_tokens": count, "loss": total, "grad_norm": norm}


def greedy(model, tokens):
    prompt = tokens[0, :1, :12]
    model.eval()
    with torch.no_grad():
        out = model.generate(input_ids=prompt, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
    model.train()
    return {"prompt": prompt[0].tolist(), "tokens": out[0, prompt.shape[1]:].tolist()}


def split_adapter(case, model, tokens, labels, generator):
    """An adapter with an A and a B for gate, up and down of each expert: logits and gradients through W + s B A."""
    scale = ALPHA / RANK
    adapted = copy.deepcopy(model)
    parameters = dict(adapted.named_parameters())
    adapter, place = {}, {}
    with torch.no_grad():
        for name, p in parameters.items():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                continue
            experts, rows = p.shape[0], p.shape[1]
            module = name.rsplit(".", 1)[0]
            gate_up = name.endswith("gate_up_proj")
            parts = {"gate_proj": slice(0, rows // 2), "up_proj": slice(rows // 2, rows)} if gate_up else {"down_proj": slice(None)}
            for e in range(experts):
                for part, rows_of_part in parts.items():
                    weight = p[e, rows_of_part]
                    a = torch.randn(RANK, weight.shape[1], generator=generator) * 0.1
                    b = torch.randn(weight.shape[0], RANK, generator=generator) * 0.1
                    weight += scale * b @ a
                    key = f"base_model.model.{module}.{e}.{part}"
                    adapter[key + ".lora_A.weight"], adapter[key + ".lora_B.weight"] = a, b
                    place[key] = (name, e, rows_of_part)
    if not adapter:
        return False
    out = adapted(input_ids=tokens[0], labels=labels[0], use_cache=False)
    out.loss.backward()
    expected = {"logits": out.logits}
    for key, (name, e, rows_of_part) in place.items():
        dw = parameters[name].grad[e, rows_of_part]
        expected[key + ".lora_A.weight"] = scale * adapter[key + ".lora_B.weight"].T @ dw
        expected[key + ".lora_B.weight"] = scale * dw @ adapter[key + ".lora_A.weight"].T
    folder = case / "split_adapter"
    folder.mkdir()
    save_file(plain(adapter), folder / "adapter_model.safetensors")
    save_file(plain(expected), folder / "expected.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none",
              "use_rslora": False, "target_modules": ["gate_proj", "up_proj", "down_proj"], "peft_version": "0.21.0"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return True


def make_adapter(case, kind, generator):
    """The adapter that a run starts from; its B is not zero, and magnitudes are not norms."""
    from peft import LoraConfig, get_peft_model
    options = {"r": RANK, "lora_alpha": ALPHA, "target_modules": list(ATTENTION)}
    if kind == "lora_experts":
        options["target_parameters"] = ["experts.gate_up_proj", "experts.down_proj"]
    if kind == "lora_dora":
        options["use_dora"] = True
    adapted = get_peft_model(load(case / "model"), LoraConfig(**options))
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
    fused = any(name.endswith("experts.gate_up_proj") for name, _ in model.named_parameters())
    aux = fused and hasattr(model.config, "router_aux_loss_coef") and not args.no_aux
    tokens, labels = make_batches(generator, max(7, args.steps), args.rows, args.length, vocab)
    save_file({"input_ids": tokens, "labels": labels}, args.case / "batches.safetensors")
    expected = {"arch": model.config.architectures, "aux": aux}
    first, reference = single_batch(args.case, model, tokens, labels, aux)
    expected |= first
    expected["bfloat16"] = bfloat16_cost(path, tokens, labels, aux, reference)
    expected["documents"] = documents(args.case, model, generator, args.length, vocab)
    expected["accumulation"] = accumulation(args.case, model, tokens, labels)
    expected["greedy"] = greedy(model, tokens)
    expected["split_adapter"] = split_adapter(args.case, model, tokens, labels, generator)
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
