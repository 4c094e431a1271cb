#!/usr/bin/env python3
"""Writes tests/fixtures/quantized/compressed: matrices as compressed-tensors writes them, and expected.safetensors with
the float32 numbers that it makes of them. modelopt beside it: the tensors of NVFP4 and FP8 under ModelOpt's names.

    python tools/make_compressed_fixture.py tests/fixtures/quantized    # torch, safetensors, compressed-tensors 0.20
"""
import json
import pathlib
import sys

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

LAYER = "model.layers.0."
# Name, shape, format, arguments, dtype of the scales.
MATRICES = [
    ("self_attn.q_proj", [24, 128], "pack-quantized", dict(num_bits=4, strategy="group", group_size=32), torch.bfloat16),
    ("self_attn.k_proj", [16, 256], "pack-quantized", dict(num_bits=4, strategy="group", group_size=128), torch.bfloat16),
    ("self_attn.v_proj", [18, 96], "pack-quantized", dict(num_bits=4, strategy="group", group_size=32, symmetric=False),
     torch.bfloat16),
    ("self_attn.o_proj", [9, 52], "pack-quantized", dict(num_bits=4, strategy="channel"), torch.float32),
    ("mlp.gate_proj", [7, 36], "pack-quantized", dict(num_bits=8, strategy="channel"), torch.bfloat16),
    ("mlp.up_proj", [7, 33], "int-quantized", dict(num_bits=8, strategy="channel"), torch.bfloat16),
    ("mlp.down_proj", [130, 150], "float-quantized", dict(num_bits=8, type="float", strategy="block",
                                                          block_structure=[128, 128]), torch.bfloat16),
    ("a.proj", [5, 40], "float-quantized", dict(num_bits=8, type="float", strategy="channel"), torch.float32),
    ("b.proj", [5, 40], "float-quantized", dict(num_bits=8, type="float", strategy="tensor"), torch.float32),
    ("c.proj", [6, 64], "nvfp4-pack-quantized", dict(num_bits=4, type="float", strategy="tensor_group", group_size=16),
     torch.float32),
    ("d.proj", [6, 64], "mxfp4-pack-quantized", dict(num_bits=4, type="float", strategy="group", group_size=32,
                                                     scale_dtype=torch.uint8, zp_dtype=torch.uint8), torch.float32),
]  # fmt: skip


def weight(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02


def extremes(x, args):
    """The least and the largest number of each part that has a scale."""
    if args.strategy == "tensor":
        return x.min().reshape(1), x.max().reshape(1)
    if args.strategy == "channel":
        return x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    if args.strategy == "block":
        rows, columns = args.block_structure
        parts = [[part for part in band.split(columns, 1)] for band in x.split(rows)]
        return tuple(torch.stack([torch.stack([f(p) for p in band]) for band in parts]) for f in (torch.min, torch.max))
    grouped = x.reshape(x.shape[0], -1, args.group_size)
    return grouped.amin(2), grouped.amax(2)


def compressed(shape, kind, arguments, dtype, seed):
    """The tensors of a matrix, and its numbers."""
    args = QuantizationArgs(**({"symmetric": True} | arguments))
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    x = weight(shape, seed)
    least, largest = extremes(x, args)
    state = {"weight": x}
    factor = None
    if args.strategy == "tensor_group":
        factor = state["weight_global_scale"] = generate_gparam(x.min(), x.max())
    scale, zero = calculate_qparams(least, largest, args, global_scale=factor)
    state["weight_scale"] = scale.to(dtype) if args.type == "int" or args.num_bits == 8 else scale
    if not args.symmetric:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(kind)
    tensors = compressor.compress(dict(state), scheme)
    exact = {k: v.float() if k == "weight_scale" and v.dtype == torch.bfloat16 else v for k, v in tensors.items()}
    return tensors, compressor.decompress(exact, scheme)["weight"].float()


def main():
    folder = pathlib.Path(sys.argv[1])
    tensors, expected, modelopt, modelopt_expected = {"model.norm.weight": torch.arange(1.0, 6.0)}, {}, {}, {}
    for seed, (name, shape, kind, arguments, dtype) in enumerate(MATRICES):
        parts, numbers = compressed(shape, kind, arguments, dtype, seed)
        module = LAYER + name + "."
        tensors |= {module + part: value.contiguous() for part, value in parts.items()}
        expected[module + "weight"] = numbers.contiguous()
        if kind.startswith("nvfp4"):
            modelopt |= {
                module + "weight": parts["weight_packed"],
                module + "weight_scale": parts["weight_scale"],
                module + "weight_scale_2": 1 / parts["weight_global_scale"].reshape(()),
                module + "input_scale": torch.tensor(0.5),
            }
            modelopt_expected[module + "weight"] = numbers.contiguous()
        if arguments["strategy"] == "tensor":
            modelopt |= {module + "weight": parts["weight"], module + "weight_scale": parts["weight_scale"].reshape(())}
            modelopt_expected[module + "weight"] = numbers.contiguous()
    group = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
    config = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*self_attn.*"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": group}},
    }
    write(folder / "compressed", tensors, expected, config)
    write(folder / "modelopt", modelopt, modelopt_expected, {"quant_method": "modelopt", "quant_algo": "NVFP4"})


def write(folder, tensors, expected, quantization):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(expected, folder / "expected.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}, indent=1) + "\n")


if __name__ == "__main__":
    main()
