#!/usr/bin/env python3
"""The loss that transformers and peft give a model with an adapter, to compare with `hone eval`.

    python3 tools/peft_loss.py loss MODEL ADAPTER DATA.jsonl      prints the mean loss of a token
    python3 tools/peft_loss.py fixture FOLDER                     writes tests/fixtures/peft_adapter anew

DATA has rows {"input_ids": [...]}; every document is run alone, in float32, and every token but the first is learnt.
"""
import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM


def mean_loss(model, path):
    total, tokens = 0.0, 0
    with torch.no_grad():
        for line in open(path):
            ids = torch.tensor([json.loads(line)["input_ids"]])
            logits = model(input_ids=ids).logits[0, :-1].double()
            total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            tokens += ids.shape[1] - 1
    return total / tokens


def loss(model, adapter, data):
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    return mean_loss(PeftModel.from_pretrained(base, adapter).eval(), data)


def fixture(folder):
    torch.manual_seed(7)
    config = Qwen3MoeConfig(vocab_size=40, hidden_size=16, intermediate_size=24, moe_intermediate_size=8,
                            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
                            num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, max_position_embeddings=64,
                            initializer_range=0.2, tie_word_embeddings=False)
    model = Qwen3MoeForCausalLM(config)
    model.save_pretrained(folder / "model")
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
                      target_parameters=["experts.gate_up_proj", "experts.down_proj"],
                      rank_pattern={r"layers\.0\.self_attn\.q_proj": 2, "v_proj": 3, "experts.gate_up_proj": 1},
                      alpha_pattern={"o_proj": 3, r"model.layers.1.*experts.down_proj": 20},
                      layers_to_transform=[0, 1], modules_to_save=["embed_tokens", "lm_head", "mlp.gate"])
    adapted = get_peft_model(model, lora).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    adapted.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(3)
    with open(folder / "data.jsonl", "w") as file:
        for length in (3, 9, 17, 30, 5):
            ids = torch.randint(0, 40, (length,), generator=generator).tolist()
            file.write(json.dumps({"input_ids": ids}) + "\n")
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager")
    expected = {"base_loss": mean_loss(base.eval(), folder / "data.jsonl"),
                "adapter_loss": loss(folder / "model", folder / "adapter", folder / "data.jsonl")}
    assert abs(expected["adapter_loss"] - mean_loss(adapted, folder / "data.jsonl")) < 1e-6
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if sys.argv[1] == "fixture":
    fixture(Path(sys.argv[2]))
else:
    print(loss(*sys.argv[2:5]))
