#!/usr/bin/env python3
"""Writes tests/fixtures/config_classes.json: how transformers' config classes read a config.json.

For each architecture of src/models/registry.cpp the fixture has the class's default config ("config") and cases. A case is
a change of that config ("set", "erase") and what transformers makes of it ("resolved": the fields that it then has
otherwise). Kinds of cases:

  missing    a field is not there, so that transformers takes its default
  null       a field is null, where transformers accepts that
  other      a field has another legal value; "beside" are changes without which it would have no effect
  rope       RoPE is stated in another form, twice, or with fields outside rope_parameters

src/models/config_classes_test.cpp reads it. Needs transformers 5 alone:  tools/make_config_fixture.py
"""

import copy
import json
import pathlib

import transformers

CLASSES = {
    "Qwen3MoeForCausalLM": "Qwen3MoeConfig",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeConfig",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeTextConfig",
    "Qwen3NextForCausalLM": "Qwen3NextConfig",
    "Qwen2MoeForCausalLM": "Qwen2MoeConfig",
    "MixtralForCausalLM": "MixtralConfig",
    "OlmoeForCausalLM": "OlmoeConfig",
    "GraniteMoeForCausalLM": "GraniteMoeConfig",
    "GraniteMoeSharedForCausalLM": "GraniteMoeSharedConfig",
    "GraniteMoeHybridForCausalLM": "GraniteMoeHybridConfig",
    "NemotronHForCausalLM": "NemotronHConfig",
    "DeepseekV2ForCausalLM": "DeepseekV2Config",
    "DeepseekV3ForCausalLM": "DeepseekV3Config",
    "KimiK25ForConditionalGeneration": "Kimi_K25Config",
    "SolarOpenForCausalLM": "SolarOpenConfig",
    "HYV3ForCausalLM": "HYV3Config",
    "Glm4MoeForCausalLM": "Glm4MoeConfig",
    "Glm4MoeLiteForCausalLM": "Glm4MoeLiteConfig",
    "MiniMaxM2ForCausalLM": "MiniMaxM2Config",
    "Ernie4_5_MoeForCausalLM": "Ernie4_5_MoeConfig",
    "Dots1ForCausalLM": "Dots1Config",
    "Mistral3ForConditionalGeneration": "Mistral3Config",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3VLMoeConfig",
    "HunYuanMoEV1ForCausalLM": "HunYuanMoEV1Config",
    "Mistral4ForCausalLM": "Mistral4Config",
    "Gemma4ForConditionalGeneration": "Gemma4Config",
    "Gemma4ForCausalLM": "Gemma4TextConfig",
    "GptOssForCausalLM": "GptOssConfig",
    "Qwen3ForCausalLM": "Qwen3Config",
    "Qwen2ForCausalLM": "Qwen2Config",
    "MistralForCausalLM": "MistralConfig",
    "LlamaForCausalLM": "LlamaConfig",
}

GEMMA4 = {"hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 704,
          "attention_k_eq_v": True, "num_global_key_value_heads": 2}
# Defaults that are no model.
BASES = {
    "GraniteMoeHybridForCausalLM": {"mamba_d_state": 128},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "Glm4MoeForCausalLM": {"head_dim": 128},
    "Mistral3ForConditionalGeneration": {"text_config": {"model_type": "mistral4"}},
    "Gemma4ForConditionalGeneration": {"text_config": {"model_type": "gemma4_text", **GEMMA4}},
    "Gemma4ForCausalLM": GEMMA4,
    "HunYuanMoEV1ForCausalLM": {"head_dim": 128, "num_experts": 64, "moe_topk": 8},
    "Dots1ForCausalLM": {"n_shared_experts": 2, "n_routed_experts": 128, "num_experts_per_tok": 6},
}

WINDOWS = {"use_sliding_window": True, "sliding_window": 77, "max_window_layers": 2, "layer_types": None}
MAMBA_SIZES = {"hidden_size": {"mamba_n_heads": 256}, "mamba_expand": {"mamba_n_heads": 256},
               "mamba_n_heads": {"mamba_expand": 4}, "mamba_d_head": {"mamba_expand": 4}}
GROUPS = {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}
OTHERS = {
    "hidden_act": "gelu",
    "hidden_activation": "gelu",
    "final_logit_softcapping": 20.0,
    "use_bidirectional_attention": "all",
    "audio_config": {"hidden_size": 64},
    "mlp_hidden_act": "gelu",
    "mamba_hidden_act": "gelu",
    "mamba_ssm_cache_dtype": "bfloat16",
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "mtp_layers_block_type": ["moe"],
    "moe_latent_size": 64,
    "hidden_dropout": 0.1,
    "pad_token_id": 3,
    "bos_token_id": 5,
    "eos_token_id": 6,
    "mlp_only_layers": [1],
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 44,
    "moe_layer_end_index": 13,
    "clip_qkv": 8.0,
    "projector_hidden_act": "relu",
    "problem_type": "regression",
    "id2label": {"0": "A"},
    "label2id": {"A": 0},
    "dtype": "float16",
    "transformers_version": "4.0.0",
    "_name_or_path": "elsewhere",
    "vision_config": {"depth": 3},
    "router_jitter_noise": 0.1,
    "position_embedding_type": "rope",
    "time_step_limit": [0.1, 2.0],
    "attention_dropout": 0.1,
}


def beside(field, config):
    """Changes without which another value of the field would have no effect, or contradict the rest."""
    changes = {}
    if field in WINDOWS and "use_sliding_window" in config:
        changes = {name: value for name, value in WINDOWS.items() if name in config}
    if field in GROUPS and "topk_method" in config:
        changes = dict(GROUPS)
    if field == "num_hidden_layers":
        changes = {name: None for name in ("layer_types", "mlp_layer_types") if name in config}
        if sizes := config.get("per_layer_config"):
            changes["per_layer_config"] = {**sizes, str(config[field]): next(iter(sizes.values()))}
    if field == "num_attention_heads" and config.get("num_key_value_heads") == config[field]:
        changes = {"num_key_value_heads": 2 * config[field]}
    if field == "partial_rotary_factor":
        changes = {"rope_parameters": {k: v for k, v in config["rope_parameters"].items() if k != field}}
    if field in MAMBA_SIZES and "mamba_expand" in config:
        changes = dict(MAMBA_SIZES[field])
    kinds = config.get("layer_types") or []
    if field == "sliding_window" and kinds and "use_sliding_window" not in config and "sliding_attention" not in kinds:
        changes = {"layer_types": ["sliding_attention"] * len(kinds)}
    changes.pop(field, None)
    return changes


def other(field, value, config):
    """Another legal value of a field."""
    if field == "use_sliding_window":
        return not value
    if field in WINDOWS and "use_sliding_window" in config and field != "layer_types":
        return WINDOWS[field]
    if field in GROUPS and "topk_method" in config:
        return {"topk_method": GROUPS["topk_method"], "n_group": 4, "topk_group": 2}[field]
    if field in OTHERS:
        return OTHERS[field]
    if field == "layer_types":
        kinds = sorted(set(value))
        others = {"sliding_attention": "full_attention", "linear_attention": "full_attention"}
        return [others.get(kind, kinds[-1]) for kind in value] if len(kinds) > 1 else ["sliding_attention"] * len(value)
    if field == "rope_parameters" and "full_attention" in value:
        return {**value, "full_attention": {**value["full_attention"], "rope_theta": 12345.0}}
    if field == "per_layer_config":
        return {layer: {**own, "head_dim": 64} for layer, own in value.items()}
    if field == "rope_parameters":
        return {**value, "rope_theta": 12345.0}
    if field == "text_config":
        return {**value, "hidden_size": 2 * value["hidden_size"]}
    if field == "sliding_window":
        return 77
    if field in ("num_experts_per_tok", "moe_topk", "num_key_value_heads", "topk_group"):
        return value // 2
    if field == "num_hidden_layers":
        return value + 1
    if field == "head_dim" and value is None:
        return 64
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 2 * value or 2
    if isinstance(value, float):
        return value / 2
    raise SystemExit(f"no other value of {field}: {value!r}")


def plain(value):
    """As JSON has it: keys are text."""
    return json.loads(json.dumps(value))


def as_saved(value):
    """As text, with infinity as transformers writes it to config.json."""
    return json.dumps(value).replace("Infinity", '{"__float__": "Infinity"}')


def resolved(config_class, config):
    config = copy.deepcopy(config)
    config.pop("architectures", None)
    made = config_class.from_dict(config)
    for part in (made, getattr(made, "text_config", None)):
        if getattr(part, "rope_parameters", None):
            part.standardize_rope_params()  # as the rotary embedding does
    return plain(made.to_dict())


def case(config_class, default, kind, field, set_to=(), erase=(), also=None):
    config = {name: value for name, value in default.items() if name not in erase}
    config.update(also or {})
    config.update(set_to)
    try:
        made = resolved(config_class, config)
    except Exception as error:  # not legal: transformers refuses it
        if kind in ("null", "missing"):
            return None
        raise SystemExit(f"{config_class.__name__}, {kind} {field}: {error}") from error
    changes = {name: value for name, value in made.items() if name not in config or config[name] != value}
    changes.pop("architectures", None)
    result = {"kind": kind, "field": field}
    if erase:
        result["erase"] = list(erase)
    if set_to:
        result["set"] = dict(set_to)
    if also:
        result["beside"] = also
    result["resolved"] = changes
    gone = sorted(name for name in config if name not in made and name != "architectures")
    if gone:
        result["gone"] = gone
    return result


def rope_cases_by_layer_type(config_class, default):
    types = default["rope_parameters"]
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 777.0}
    for name in types:
        for stated in ({**types[name], "rope_theta": 54321.0}, linear):
            yield case(config_class, default, "rope", "rope_parameters", {"rope_parameters": plain({**types, name: stated})})


def rope_cases(config_class, default):
    if "full_attention" in default["rope_parameters"]:
        yield from rope_cases_by_layer_type(config_class, default)
        return
    theta = default["rope_parameters"]["rope_theta"]
    partial = {k: v for k, v in default["rope_parameters"].items() if k == "partial_rotary_factor"}
    linear = {"rope_type": "linear", "factor": 4.0}
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    statements = [
        {"rope_theta": 54321.0},
        {"rope_scaling": linear, "rope_theta": 54321.0},
        {"rope_scaling": yarn},
        {"rope_parameters": {**linear, **partial}},
        {"rope_parameters": {**yarn, **partial}, "rope_theta": 54321.0},
        {"rope_parameters": {**yarn, **partial, "rope_theta": 999.0}, "rope_theta": 54321.0},
        {"rope_parameters": {**yarn, **partial}, "original_max_position_embeddings": 2048},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, **partial}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **partial}, "rope_scaling": linear},
        {"rope_parameters": {"rope_theta": 777.0, **yarn, **partial}, "rope_scaling": yarn},
        {"rope_parameters": {"rope_theta": theta, **yarn, **partial}, "rope_scaling": yarn, "rope_theta": theta},
        {"rope_parameters": None, "rope_scaling": None},
        {"rope_parameters": {}, "rope_scaling": {}},
        {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 3.0}},
    ]
    for set_to in statements:
        yield case(config_class, default, "rope", "rope_parameters", plain(set_to), ["rope_parameters"])


def cases_of(architecture, config_class, default):
    for field in default:
        if field in ("architectures", "model_type"):
            continue
        yield case(config_class, default, "missing", field, erase=[field])
        if beside(field, default):
            yield case(config_class, default, "missing", field, erase=[field], also=beside(field, default))
        if default[field] is not None:
            yield case(config_class, default, "null", field, {field: None})
        value = other(field, default[field], default)
        yield case(config_class, default, "other", field, {field: value}, also=beside(field, default))
    if "rope_parameters" in default:
        yield from rope_cases(config_class, default)


def main():
    fixture = {"transformers": transformers.__version__, "classes": {}}
    for architecture, class_name in CLASSES.items():
        config_class = getattr(transformers, class_name)
        default = resolved(config_class, BASES.get(architecture, {}))
        default["architectures"] = [architecture]
        fixture["classes"][architecture] = {
            "config": default,
            "cases": [made for made in cases_of(architecture, config_class, default) if made],
        }
    path = pathlib.Path(__file__).parent.parent / "tests/fixtures/config_classes.json"
    lines = []
    for architecture, described in fixture["classes"].items():
        cases = ",\n".join("    " + as_saved(made) for made in described["cases"])
        config = as_saved(described["config"])
        lines.append(f'  "{architecture}": {{\n   "config": {config},\n   "cases": [\n{cases}\n   ]\n  }}')
    head = f'{{\n "transformers": "{fixture["transformers"]}",\n "classes": {{\n'
    path.write_text(head + ",\n".join(lines) + "\n }\n}\n")


if __name__ == "__main__":
    main()
