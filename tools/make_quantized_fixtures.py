#!/usr/bin/env python3
"""Writes tests/fixtures/quantized/{fp8,mxfp4}: small checkpoints in the two quantised formats that Hone reads.

Random codes, so that every finite number of a format occurs (others are refused); no library, so that the files come from nobody's reader or writer.

  fp8    as DeepSeek-V3 has it: NAME.weight F8_E4M3 [N, K] and NAME.weight_scale_inv F32 (once BF16)
         [ceil(N / 128), ceil(K / 128)]; here blocks of 16 x 32, in config.json's weight_block_size. Shapes that are no
         multiple of a block, one tensor for each expert and projection, and one fused [E, N, K] with scales [E, ., .].
  mxfp4  as gpt-oss has its experts: NAME_blocks U8 [E, out, in / 32, 16], two e2m1 numbers a byte, lower half first, and
         NAME_scales U8 [E, out, in / 32], the exponent of a power of two with bias 127. The same tensor unquantised is
         [E, in, out]; outputs of gate_up_proj are gate 0, up 0, gate 1, ...
"""

import json
import pathlib
import random
import struct

BLOCK_ROWS, BLOCK_COLUMNS = 16, 32
SIZES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}


def write(folder, tensors, quantization):
    folder.mkdir(parents=True, exist_ok=True)
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        count = 1
        for dim in shape:
            count *= dim
        assert len(data) == count * SIZES[dtype], name
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(data for _, _, data in tensors.values())
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}, indent=1) + "\n")


def scales(rng, count, dtype):
    values = [rng.choice([-1, 1]) * 2.0 ** rng.uniform(-12, 2) for _ in range(count)]
    values[0] = 7.0e35  # 448 of it is close to the largest number
    values[-1] = 0.0
    floats = struct.pack(f"<{count}f", *values)
    if dtype == "F32":
        return floats
    return b"".join(floats[4 * i + 2 : 4 * i + 4] for i in range(count))


def add_fp8(tensors, rng, name, shape, dtype="F32"):
    *matrices, rows, columns = shape
    blocks = [*matrices, -(-rows // BLOCK_ROWS), -(-columns // BLOCK_COLUMNS)]
    count = 1
    for dim in shape:
        count *= dim
    of_scales = 1
    for dim in blocks:
        of_scales *= dim
    tensors[name] = ("F8_E4M3", shape, rng.randbytes(count).replace(b"\x7f", b"\x7e").replace(b"\xff", b"\xfe"))
    tensors[name + "_scale_inv"] = (dtype, blocks, scales(rng, of_scales, dtype))


def fp8(folder):
    rng, tensors = random.Random(1), {}
    add_fp8(tensors, rng, "model.layers.0.self_attn.q_proj.weight", [50, 70])
    add_fp8(tensors, rng, "model.layers.0.self_attn.k_proj.weight", [32, 64])
    add_fp8(tensors, rng, "model.layers.0.self_attn.v_proj.weight", [1, 3])
    add_fp8(tensors, rng, "model.layers.0.self_attn.o_proj.weight", [17, 33], dtype="BF16")
    tensors["model.norm.weight"] = ("F32", [5], struct.pack("<5f", 1, 2, 3, 4, 5))
    for expert in range(3):
        for projection, shape in (("w1", [20, 40]), ("w3", [20, 40]), ("w2", [40, 20])):
            add_fp8(tensors, rng, f"model.layers.0.block_sparse_moe.experts.{expert}.{projection}.weight", shape)
    add_fp8(tensors, rng, "model.layers.1.mlp.experts.down_proj", [3, 40, 20])
    add_fp8(tensors, rng, "mtp.proj.weight", [18, 34])
    write(folder, tensors, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK_ROWS, BLOCK_COLUMNS]})


def add_mxfp4(tensors, rng, name, experts, out, inner):
    groups = experts * out * inner // 32
    exponents = bytearray(rng.choices(range(90, 160), k=groups))
    exponents[:6] = bytes([0, 1, 252, 251, 250, 127])
    tensors[name + "_blocks"] = ("U8", [experts, out, inner // 32, 16], rng.randbytes(groups * 16))
    tensors[name + "_scales"] = ("U8", [experts, out, inner // 32], bytes(exponents))


def mxfp4(folder):
    rng, tensors = random.Random(2), {}
    experts = "model.layers.0.mlp.experts."
    add_mxfp4(tensors, rng, experts + "gate_up_proj", 3, 34, 96)
    add_mxfp4(tensors, rng, experts + "down_proj", 3, 96, 32)
    tensors[experts + "gate_up_proj_bias"] = ("F32", [3, 34], struct.pack("<102f", *range(102)))
    write(folder, tensors, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})


if __name__ == "__main__":
    fixtures = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "quantized"
    fp8(fixtures / "fp8")
    mxfp4(fixtures / "mxfp4")
