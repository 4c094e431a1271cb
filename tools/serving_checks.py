"""Loads merged models and adapters of Hone with the code of vLLM or SGLang, without a GPU and without running a model.

    pip install vllm
    python3 tools/serving_checks.py vllm build/hone tests/fixtures/goldens/qwen3_moe [more cases]

and the same with sglang. Neither needs a GPU for this; kernels are replaced by empty modules (serving_vllm.py, serving_sglang.py).
For each case Hone trains LoRA in several forms and merges it, all in float32. A row is

- model: the engine's class of the architecture reads the files of the text model. Every element of its parameters must have been
  written, and each tensor of the files must be found in one, value by value, in the order of the file or of its transpose. Those
  that are found in another order are named; so are those computed with, which but for COMPUTED is a failure.
- an adapter: the engine's own checks of adapter_config.json and of names, then its LoRA layers. What they add to the weights,
  scaled as the engine will, must be the merged model's weights less the base's, both as the engine has read them.

"refused" is what the engine or Hone says of an adapter, and no failure. Exit code 1 if a row failed.

An engine is a module with prepare(folder), a class Engine(model, adapter, option) that has model, load_weights(weights) and changes(),
the name of an OPTION, and helps(result): whether a row is to be tried once more with it.
"""
import argparse
import importlib
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import traceback

import torch
from safetensors.torch import load_file

EXPERTS = "lora_target_modules=[attention,all-experts]"
ADAPTERS = {
    "attention": ["lora_target_modules=attention"],
    "rslora": ["lora_target_modules=attention", "use_rslora=true"],
    "ranks": ["lora_target_modules=attention", "lora_rank_pattern={layers.0.*: 2}"],
    "split": [EXPERTS, "expert_lora=split", "adapter_layout=split"],
    "target_parameters": [EXPERTS, "expert_lora=split", "adapter_layout=target_parameters"],
    "shared": [EXPERTS, "expert_lora=shared"],
    "sglang": [EXPERTS, "expert_lora=split", "adapter_layout=sglang"],
    "sglang_rslora": ["lora_target_modules=attention", "use_rslora=true", "adapter_layout=sglang"],
}
LETTERS = {"linear_attention": "M", "full_attention": "*", "moe": "E", "mlp": "-"}  # kinds of layers of Nemotron-H
FULL_ATTENTION = {"full_attention_interval": lambda c: c["layer_types"].index("full_attention") + 1}
# Fields of released config.json files that transformers 5, which made the cases, does not write; functions of the case's own.
RELEASED = {
    "deepseek_v2": {"moe_layer_freq": 1, "n_group": 1, "scoring_func": "softmax", "topk_group": 1},
    "deepseek_v3": {"architectures": ["DeepseekV3ForCausalLM"], "moe_layer_freq": 1, "scoring_func": "sigmoid",
                    "topk_method": "noaux_tc"},
    "glm4_moe_lite": {"first_k_dense_replace": lambda c: c["mlp_layer_types"].count("dense"), "topk_method": "noaux_tc"},
    "hunyuan_v1_moe": {"moe_intermediate_size": lambda c: [c["intermediate_size"]] * c["num_hidden_layers"],
                       "moe_topk": lambda c: [c["moe_topk"]] * c["num_hidden_layers"],
                       "num_shared_expert": lambda c: [1] * c["num_hidden_layers"],
                       "use_mixed_mlp_moe": True, "use_qk_norm": True},
    "hy_v3": {"first_k_dense_replace": lambda c: c["mlp_layer_types"].count("dense"), "qk_norm": True, "route_norm": True,
              "expert_hidden_dim": lambda c: c["moe_intermediate_size"]},
    "kimi_k25_vision": {"vt_hidden_size": lambda c: c["hidden_size"], "vt_intermediate_size": lambda c: c["intermediate_size"],
                        "vt_num_attention_heads": lambda c: c["num_attention_heads"],
                        "vt_num_hidden_layers": lambda c: c["num_hidden_layers"], "mm_hidden_size": lambda c: c["hidden_size"],
                        "text_hidden_size": 64},
    "minimax_m2": {"rotary_dim": lambda c: int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"]),
                   "scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True},
    "nemotron_h": {"hybrid_override_pattern": lambda c: "".join(LETTERS[kind] for kind in c["layers_block_type"]),
                   "num_hidden_layers": lambda c: len(c["layers_block_type"]),
                   "mamba_n_groups": lambda c: c["n_groups"]},  # SGLang's name, whose default is what released models have
    "qwen3_5_moe_text": FULL_ATTENTION,
    "qwen3_next": FULL_ATTENTION,
    "qwen3_vl_moe_text": {"norm_topk_prob": True, "num_experts": lambda c: c["num_local_experts"]},
}
COMPUTED = ("A_log", "sinks")  # tensors of which engines hold -exp(x), or x in bfloat16
BOUND = 1e-5  # of the largest change of a weight; sums of at most a few products in float32


def told(error):
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = re.sub(r"/\S*/", "", " ".join(str(error).split())) or f"at {pathlib.Path(place.filename).name}:{place.lineno}"
    return f"{type(error).__name__}: {text}"[:500]


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)


def is_text(name):
    return not any(tower in name for tower in ("visual", "vision", "mm_projector", "multi_modal_projector"))


def read(model):
    files = sorted(model.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items() if is_text(name)}


def prepare_model(case, folder):
    shutil.copytree(case / "model", folder / "model")
    config = json.loads((case / "model" / "config.json").read_text())
    for part in (config, config.get("text_config", {}), config.get("vision_config", {})):
        fields = RELEASED.get(part.get("model_type"), {})
        part.update({name: value(part) if callable(value) else value for name, value in fields.items()})
        if "hybrid_override_pattern" in part:
            part.pop("layers_block_type", None)
    (folder / "model" / "config.json").write_text(json.dumps(config))


def train(hone, case, folder):
    """Adapters of folder/model, and beside them merged/NAME, by their names; or what Hone says."""
    batches = load_file(case / "batches.safetensors")
    ids, labels = batches["input_ids"], batches["labels"]
    rows = [{"input_ids": ids[i, b].tolist(), "labels": labels[i, b].tolist()} for i in range(4) for b in range(2)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, options in ADAPTERS.items():
        try:
            run(hone, "train", f"model_name_or_path={folder / 'model'}", f"datasets={data}", "finetuning_type=lora", "lora_r=4",
                "max_length=256", "dtype=float32", "max_steps=3", "learning_rate=2e-2", "warmup_steps=0", "packing=false",
                "device=cpu", f"output_dir={folder / name}", *options)
        except RuntimeError as error:
            if EXPERTS not in options:
                raise
            yield name, f"refused by Hone, {told(error)}"  # no experts, or a form that they cannot have
            continue
        run(hone, "merge", "--model", folder / "model", "--adapter", folder / name, "--output", folder / "merged" / name)
        yield name, None


def load(engine, tensors):
    """The text model's parameters after the engine's load_weights; NaN is where nothing was written."""
    with torch.no_grad():
        for parameter in engine.model.parameters():
            if parameter.is_floating_point():
                parameter.fill_(float("nan"))
        engine.load_weights([(name, tensor.clone()) for name, tensor in tensors.items()])
    held = [*engine.model.named_parameters(), *engine.model.named_buffers()]
    return {name: value.detach().clone() for name, value in held if is_text(name)}


def numbered(tensors):
    """The tensors with numbers instead of weights, each number once, and none that is one more than another tensor's."""
    begin, found = 1, {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            found[name] = torch.arange(begin, begin + tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
            begin += tensor.numel() + 2
    assert begin < 2**24, "float32 has no more whole numbers"
    return {name: found[name].to(tensor.dtype) if name in found else tensor for name, tensor in tensors.items()}


def where(tensor, parameters):
    """How a numbered tensor is found in parameters."""
    best = None
    for value in parameters.values():
        block = value[(value >= tensor.min()) & (value <= tensor.max())]
        copies = block.numel() // tensor.numel()  # keys that are the values, too, are found twice
        orders = (tensor, tensor.mT if tensor.dim() > 1 else tensor)
        if copies and any(torch.equal(block, order.flatten().repeat(copies)) for order in orders):
            return "copied"
        if torch.equal(block.sort().values, tensor.flatten()):
            best = "reordered"
    return best


def has_effect(engine, tensors, name):
    before, after = load(engine, tensors), load(engine, {**tensors, name: tensors[name] * 2 + 1})
    return any(not torch.equal(value, after[key]) for key, value in before.items() if not value.isnan().any())


def check_model(engine, tensors):
    numbers = numbered(tensors)
    parameters = {name: value.float() for name, value in load(engine, numbers).items() if value.is_floating_point()}
    empty = sorted({kind(name) for name, value in parameters.items() if value.isnan().any()})
    found = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            how = where(numbers[name], parameters) or ("computed from" if has_effect(engine, tensors, name) else "without effect")
            found.setdefault(how, {}).setdefault(kind(name))
    notes = [f"{how} {', '.join(names)}" for how, names in found.items() if how != "copied"]
    notes += [f"not written {', '.join(empty)}"] * bool(empty)
    wrong = [name for how, names in found.items() for name in names if how in ("computed from", "without effect")]
    failed = "FAILED, " if empty or any(not name.endswith(COMPUTED) for name in wrong) else ""
    return failed + "; ".join([f"{len(tensors)} tensors", *notes])


def kind(name):
    """A name without the numbers of layers and experts."""
    return re.sub(r"\.\d+(?=\.)", ".N", name)


def check_adapter(engine, folder, name):
    before, after = (load(engine, read(model)) for model in (folder / "model", folder / "merged" / name))
    expected = {key: (after[key] - value).nan_to_num() for key, value in before.items()  # padding is not written
                if value.is_floating_point() and value.numel()}
    found = engine.changes()
    scale = max(change.abs().max().item() for change in expected.values())
    worst, wrong = 0.0, {}
    for key, change in expected.items():
        given = found.get(key, torch.zeros(()))
        error = (change - given).abs().max().item() / scale
        worst = max(worst, error)
        if not error <= BOUND:
            wrong.setdefault(f"{kind(key)}{'' if given.any() else ' (not changed)'}")
    return f"FAILED {', '.join(wrong)}" if wrong else f"{worst:.1e} of the largest change"


def attempt(engine, folder, name, option=False):
    try:
        return check_adapter(engine.Engine(folder / "model", folder / name, option), folder, name)
    except Exception as error:  # engines refuse with exceptions of every kind
        return f"refused, {told(error)}"


def check(engine, hone, case):
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        names = []
        prepare_model(case, folder)
        for name, refusal in train(hone, case, folder):
            if refusal:
                yield name, refusal
            else:
                names.append(name)
        yield "model", check_model(engine.Engine(folder / "model"), read(folder / "merged" / names[-1]))
        for name in names:
            result = attempt(engine, folder, name)
            yield name, result
            if engine.helps(result):
                yield f"{name}, {engine.OPTION}", attempt(engine, folder, name, option=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("hone", type=pathlib.Path)
    parser.add_argument("cases", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float32)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        engine = importlib.import_module(f"serving_{arguments.engine}")
        engine.prepare(folder)
        for case in arguments.cases:
            try:
                for what, result in check(engine, arguments.hone.resolve(), case):
                    print(f"{case.name} {what}: {result}", flush=True)
                    failed |= result.startswith("FAILED")
            except Exception as error:  # one case must not hide the others
                print(f"{case.name}: FAILED {told(error)}", flush=True)
                failed = True
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
