"""What a reference case computes once, without training, and how far it moves by itself.

`compute` gives every number and tensor of these rows for one model; `measure_noise` repeats it from weights that are half an
ulp off, once a seed, and compares by the measures of `hone verify` (src/app/verify/check.h).
"""
import copy
import json

import torch
from safetensors.torch import load_file, save_file

from case_model import EXPERTS, IGNORED, cross_entropy, forward, gradients, jitter, load, norm, plain, ratio, shorten

RANK, ALPHA = 4, 8
ACCUMULATED = [3, 4, 5, 6]
PROMPT, CONTINUATION = 12, 24
# Noise above these is no bound (kMostRowNoise and kMostGradientNoise of src/app/verify/noise_bounds.h).
MOST_ROW_NOISE, MOST_GRADIENT_NOISE = 2e-4, 0.05
NOISE_FACTOR = 2  # kNoiseFactor
SMALL_GRADIENT = 1e-4  # kSmallGradient of src/app/verify/check.cpp
# Tensors of gradients: the field of the noise, and the file of the case.
GRADIENTS = {"gradients": "grads.safetensors", "packed_gradients": "packed_grads.safetensors",
             "accumulation_gradients": "accumulation_grads.safetensors"}
NUMBERS = ("loss", "aux_loss", "accumulation_loss", "accumulation_grad_norm")
LOGITS = ("logits", "split_logits")


def single_batch(model, tokens, labels, aux):
    out = forward(model, tokens[0], labels[0], aux)
    out.loss.backward()
    return {"logits": out.logits.detach(), "loss": out.loss.item(), "aux_loss": out.aux_loss.item() if aux else None,
            "gradients": gradients(model)}


def documents(model, texts):
    """Each document alone; packed into one row they must give the same losses and gradients."""
    count = sum(len(text) - 1 for text in texts)
    losses = []
    for text in map(torch.tensor, texts):
        logits = model(input_ids=text[None], use_cache=False).logits[0]
        loss = cross_entropy(logits[:-1], text[1:], "none")
        (loss.sum() / count).backward()
        losses.append(loss.tolist())
    return {"token_losses": losses, "packed_gradients": gradients(model)}


def accumulation(model, tokens, labels):
    """Batches as micro-batches of one step: the sum of all losses over the number of all supervised tokens."""
    count = sum(int((labels[i][:, 1:] != IGNORED).sum()) for i in ACCUMULATED)
    total = 0.0
    for i in ACCUMULATED:
        logits = model(input_ids=tokens[i], use_cache=False).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[i][:, 1:].flatten(), "sum") / count
        loss.backward()
        total += loss.item()
    reference = gradients(model)
    return {"supervised_tokens": count, "accumulation_loss": total, "accumulation_grad_norm": norm(reference.values()),
            "accumulation_gradients": reference}


def continuation(model, prompt):
    """The greedy continuation of a list of tokens."""
    model.eval()
    with torch.no_grad():
        # Nemotron-H with a cache is another function: it does not bound the steps of Mamba-2.
        out = model.generate(input_ids=torch.tensor([prompt]), max_new_tokens=CONTINUATION, do_sample=False,
                             eos_token_id=None, pad_token_id=0, use_cache=False)
    model.train()
    return out[0, len(prompt):].tolist()


def margins(model, prompt, tokens):
    """By how much the logit of each token of a greedy continuation is above the next one."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1:-1].double()
    own = logits.gather(1, torch.tensor(tokens)[:, None])
    return (own[:, 0] - logits.scatter(1, torch.tensor(tokens)[:, None], -torch.inf).max(dim=1).values).tolist()


def expert_weights(model):
    """Of each gate, up and down of an expert: PEFT's key, the fused parameter that has it, the expert, its rows."""
    for name, p in model.named_parameters():
        if not name.endswith(EXPERTS):
            continue
        experts, rows, fused = p.shape[0], p.shape[1], name.rsplit(".", 1)[1]
        parts = {"gate_up_proj": {"gate_proj": slice(0, rows // 2), "up_proj": slice(rows // 2, rows)}}.get(fused, {fused: slice(None)})
        for e in range(experts):
            for part, rows_of_part in parts.items():
                yield f"base_model.model.{name.rsplit('.', 1)[0]}.{e}.{part}", name, e, rows_of_part


def make_split_adapter(model, generator):
    """An adapter with an A and a B for gate, up and down of each expert; {} for a model without experts."""
    parameters = dict(model.named_parameters())
    adapter = {}
    for key, name, e, rows in expert_weights(model):
        weight = parameters[name][e, rows]
        adapter[key + ".lora_A.weight"] = torch.randn(RANK, weight.shape[1], generator=generator) * 0.1
        adapter[key + ".lora_B.weight"] = torch.randn(weight.shape[0], RANK, generator=generator) * 0.1
    return adapter


def split_adapter(model, adapter, tokens, labels):
    """Logits and the adapter's gradients through W + s B A."""
    scale = ALPHA / RANK
    adapted = copy.deepcopy(model)
    parameters = dict(adapted.named_parameters())
    with torch.no_grad():
        for key, name, e, rows in expert_weights(adapted):
            parameters[name][e, rows] += scale * adapter[key + ".lora_B.weight"] @ adapter[key + ".lora_A.weight"]
    out = forward(adapted, tokens[0], labels[0], aux=False)
    out.loss.backward()
    result = {}
    for key, name, e, rows in expert_weights(adapted):
        dw = parameters[name].grad[e, rows]
        result[key + ".lora_A.weight"] = scale * adapter[key + ".lora_B.weight"].T @ dw
        result[key + ".lora_B.weight"] = scale * dw @ adapter[key + ".lora_A.weight"].T
    return {"split_logits": out.logits.detach(), "split_gradients": plain(result)}


def compute(model, inputs, aux):
    """Every row that is computed once. `inputs`: tokens and labels [N, B, S], texts (lists of tokens), prompt, and adapter."""
    rows = single_batch(model, inputs["tokens"], inputs["labels"], aux)
    rows |= documents(model, inputs["texts"])
    rows |= accumulation(model, inputs["tokens"], inputs["labels"])
    if inputs["adapter"]:
        rows |= split_adapter(model, inputs["adapter"], inputs["tokens"], inputs["labels"])
    rows["margins"] = margins(model, inputs["prompt"], inputs["continuation"])
    return rows


def gradient_errors(ours, reference):
    """compare_gradients of src/app/verify/check.h. Rows that are zero in the reference alone make it infinite: no noise
    makes such a row comparable."""
    smallest = SMALL_GRADIENT * norm(reference.values())
    errors = {}
    for name, expected in reference.items():
        rows = expected.flatten(1).abs().amax(1) if expected.dim() > 1 else expected.abs()
        lost = ours[name].flatten(1).abs().amax(1) if expected.dim() > 1 else ours[name].abs()
        appeared = bool(((rows == 0) & (lost != 0)).any()) if expected.dim() > 2 else False
        errors[name] = float("inf") if appeared else ratio(norm([ours[name] - expected]), max(norm([expected]), smallest))
    return errors


def errors_of(ours, reference):
    """By field of the noise: how far one computation of the rows is from another."""
    errors = {name: ratio(abs(ours[name] - reference[name]), abs(reference[name])) for name in NUMBERS
              if reference[name] is not None}
    for name in LOGITS:
        if name in reference:
            errors[name] = ratio((ours[name] - reference[name]).abs().max().item(), reference[name].abs().max().item())
    errors["token_losses"] = max(abs(a - b) for ours_, theirs in zip(ours["token_losses"], reference["token_losses"])
                                 for a, b in zip(ours_, theirs))
    errors["margins"] = max(abs(a - b) for a, b in zip(ours["margins"], reference["margins"]))
    for name in (*GRADIENTS, "split_gradients"):
        if name in reference:
            errors[name] = gradient_errors(ours[name], reference[name])
    return errors


def largest(a, b):
    return {name: max(a[name], b[name]) for name in a} if isinstance(a, dict) else max(a, b)


def measure_noise(path, reference, inputs, aux, seeds):
    """The largest errors of models whose weights are half an ulp off, and how many tokens of the continuation are as certain
    as this noise asks."""
    noise = {}
    for seed in range(1, seeds + 1):
        model = load(path)
        jitter(model, seed)
        errors = errors_of(compute(model, inputs, aux), reference)
        noise = {name: largest(noise[name], error) if noise else error for name, error in errors.items()}
    if not noise:
        return None, len(reference["margins"])
    unsure = NOISE_FACTOR * noise.pop("margins")
    certain = next((i for i, margin in enumerate(reference["margins"]) if margin <= unsure), len(reference["margins"]))
    shortened = {name: {key: shorten(value) for key, value in error.items()} if isinstance(error, dict) else shorten(error)
                 for name, error in noise.items()}
    return {"seeds": seeds, **shortened}, certain


def is_comparable(noise, certain):
    """Whether rows with twice this noise as their bounds could still fail. What is not a number is not comparable."""
    if noise is None:
        return True
    tensors = [list(value.values()) for value in noise.values() if isinstance(value, dict)]
    numbers = [value for name, value in noise.items() if name != "seeds" and not isinstance(value, dict)]
    return (certain > 0 and all(value <= MOST_ROW_NOISE for value in numbers) and
            all(value <= MOST_GRADIENT_NOISE for values in tensors for value in values) and
            all(sorted(values)[len(values) // 2] <= MOST_ROW_NOISE for values in tensors))


def show(noise, certain):
    if noise is None:
        return
    numbers = ", ".join(f"{name} {value:.2g}" for name, value in noise.items()
                        if name != "seeds" and not isinstance(value, dict))
    print(f"rows: the reference's own noise: {numbers}; {certain} certain tokens of the continuation")
    for name, values in noise.items():
        if isinstance(values, dict):
            worst = max(values, key=values.get)
            print(f"  {name}: median {sorted(values.values())[len(values) // 2]:.2g}, largest {values[worst]:.2g} of {worst}")


def write(case, rows, inputs):
    """The files of these rows."""
    save_file({"logits": rows["logits"].float().contiguous()}, case / "logits.safetensors")
    for name, file in GRADIENTS.items():
        save_file(rows[name], case / file)
    if not inputs["adapter"]:
        return
    folder = case / "split_adapter"
    folder.mkdir(exist_ok=True)
    save_file(plain(inputs["adapter"]), folder / "adapter_model.safetensors")
    save_file({"logits": rows["split_logits"].float().contiguous(), **rows["split_gradients"]}, folder / "expected.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none",
              "use_rslora": False, "target_modules": sorted({key.split(".")[-3] for key in inputs["adapter"]}),
              "peft_version": "0.21.0"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def expected_of(rows, inputs, noise, certain):
    """Their part of expected.json."""
    return {"loss": rows["loss"], "aux_loss": rows["aux_loss"],
            "documents": {"input_ids": inputs["texts"], "token_losses": rows["token_losses"]},
            "accumulation": {"batches": ACCUMULATED, "supervised_tokens": rows["supervised_tokens"],
                             "loss": rows["accumulation_loss"], "grad_norm": rows["accumulation_grad_norm"]},
            "greedy": {"prompt": inputs["prompt"], "tokens": inputs["continuation"][:certain]},
            "split_adapter": bool(inputs["adapter"]), **({} if noise is None else {"noise": noise})}


def of_case(case, expected):
    """The inputs and rows of a case that exists."""
    batches = load_file(case / "batches.safetensors")
    adapter, rows = {}, {}
    if expected["split_adapter"]:
        adapter = load_file(case / "split_adapter" / "adapter_model.safetensors")
        rows["split_gradients"] = load_file(case / "split_adapter" / "expected.safetensors")
        rows["split_logits"] = rows["split_gradients"].pop("logits")
    inputs = {"tokens": batches["input_ids"], "labels": batches["labels"], "texts": expected["documents"]["input_ids"],
              "prompt": expected["greedy"]["prompt"], "continuation": expected["greedy"]["tokens"], "adapter": adapter}
    for name, file in GRADIENTS.items():
        rows[name] = load_file(case / file)
        if any(key.endswith((".sketch", ".row_norms")) for key in rows[name]):
            raise SystemExit(f"rows: {case / file} is thinned; measure the noise of the full case and thin it then")
    rows["logits"] = load_file(case / "logits.safetensors")["logits"]
    accumulated = expected["accumulation"]
    if accumulated["batches"] != ACCUMULATED:
        raise SystemExit("rows: the case was not made by this version of tools/make_case.py")
    rows |= {"loss": expected["loss"], "aux_loss": expected["aux_loss"], "accumulation_loss": accumulated["loss"],
             "accumulation_grad_norm": accumulated["grad_norm"],
             "token_losses": expected["documents"]["token_losses"]}
    rows["margins"] = margins(load(case / "model"), inputs["prompt"], inputs["continuation"])
    return inputs, rows
