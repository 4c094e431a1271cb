#!/usr/bin/env python3
"""A model folder of the shape of Qwen3-30B-A3B with random weights in bfloat16, for measurements where no weights are.

  bench/random_model.py MODEL --tokenizer tests/fixtures/tokenizers/qwen3           # 61 GB
  bench/random_model.py MODEL --layers 8 --tokenizer FOLDER

Matrices have the standard deviation 0.02, norms are 1. All layers have the same values, in files of their own, so that
one is drawn and written many times. Needs numpy.
"""
import argparse
import json
import multiprocessing
import pathlib
import shutil
import struct

import numpy

HIDDEN, INNER, EXPERTS, HEADS, KV_HEADS, HEAD, VOCABULARY = 2048, 768, 128, 32, 4, 128, 151936


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("output", type=pathlib.Path)
    p.add_argument("--layers", type=int, default=48)
    p.add_argument("--tokenizer", type=pathlib.Path, help="folder whose files are copied, too")
    p.add_argument("--jobs", type=int, default=8, help="files written at once")
    return p.parse_args()


def layer(number):
    """Matrices and norms of a layer, with their shapes."""
    at = f"model.layers.{number}."
    matrices = {
        at + "self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
        at + "self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        at + "self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        at + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
        at + "mlp.gate.weight": (EXPERTS, HIDDEN),
    }
    for expert in range(EXPERTS):
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            matrices[f"{at}mlp.experts.{expert}.{name}_proj.weight"] = shape
    norms = {at + name + "_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    norms |= {f"{at}self_attn.{name}_norm.weight": (HEAD,) for name in "qk"}
    return matrices, norms


def count(shapes):
    return sum(int(numpy.prod(shape)) for shape in shapes.values())


def draw(matrices, norms, seed):
    """The values of all, one after another, as bfloat16."""
    values = numpy.random.default_rng(seed).standard_normal(count(matrices), dtype=numpy.float32)
    values *= 0.02
    one = numpy.full(count(norms), 0x3F80, dtype=numpy.uint16)
    return numpy.concatenate([(values.view(numpy.uint32) >> 16).astype(numpy.uint16), one])


def write(path, shapes, values):
    """A safetensors file of these tensors."""
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(memoryview(values).cast("B"))


def config(layers):
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": 6144, "moe_intermediate_size": INNER, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "num_experts": EXPERTS,
        "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": VOCABULARY, "max_position_embeddings": 40960, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "router_aux_loss_coef": 0.001,
    }


def main():
    a = arguments()
    a.output.mkdir(parents=True, exist_ok=True)
    ends = ({"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)},
            {"model.norm.weight": (HIDDEN,)})
    of_layer = draw(*layer(0), seed=1)
    files = {f"model-{i:05d}.safetensors": (layer(i), of_layer) for i in range(a.layers)}
    files["model-ends.safetensors"] = (ends, draw(*ends, seed=2))
    index = {}
    names = list(files)

    def work(job):  # of a forked process, which has the values
        for name in names[job::a.jobs]:
            (matrices, norms), values = files[name]
            write(a.output / name, matrices | norms, values)

    processes = [multiprocessing.get_context("fork").Process(target=work, args=(job,)) for job in range(a.jobs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a file could not be written")
    for name, ((matrices, norms), _) in files.items():
        index |= dict.fromkeys(matrices | norms, name)
    (a.output / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (a.output / "config.json").write_text(json.dumps(config(a.layers), indent=1))
    if a.tokenizer:
        for file in a.tokenizer.iterdir():
            shutil.copy(file, a.output)


if __name__ == "__main__":
    main()
