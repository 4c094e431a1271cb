#!/usr/bin/env python3
"""Loads models of runs that added tokens with transformers and PEFT, to compare with `hone eval`.

    python3 tools/check_new_tokens.py BASE FULL ADAPTER DATA.jsonl WRITTEN

BASE is the model that runs began with; FULL and ADAPTER are folders that a run of its own wrote, FULL with a learning rate
of nearly 0, ADAPTER with adapters; both added the same tokens. DATA has rows {"input_ids": [...]}.

Checks that the tokenizers of both encode each added token as one id, the same, and decode it; and that the rows of FULL
are those of resize_token_embeddings within 1e-4. Has PEFT write an adapter of its own to WRITTEN, with the tokenizer. Prints
{"full": loss, "adapter": loss, "written": loss} of DATA, those of adapters on a base that resize_token_embeddings
enlarged. Exit code 1 with a message if a check fails, 77 if torch, transformers or peft are missing.
"""
import json
import sys

try:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def mean_loss(model, path):
    total, tokens = 0.0, 0
    with torch.no_grad():
        for line in open(path):
            ids = torch.tensor([json.loads(line)["input_ids"]])
            logits = model(input_ids=ids).logits[0, :-1].double()
            total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            tokens += ids.shape[1] - 1
    return total / tokens


def check_tokenizer(base, other):
    before, after = AutoTokenizer.from_pretrained(base), AutoTokenizer.from_pretrained(other)
    added = {token: id for token, id in after.get_vocab().items() if token not in before.get_vocab()}
    assert added, f"{other} has no added tokens"
    assert sorted(added.values()) == list(range(len(before), len(before) + len(added))), added
    special = set(after.all_special_tokens) | {t.content for t in after.added_tokens_decoder.values() if t.special}
    for token, id in added.items():
        assert after.encode("a" + token + "b", add_special_tokens=False).count(id) == 1, token
        assert after.decode([id]) == token, token
        assert after.decode([id], skip_special_tokens=True) == ("" if token in special else token), token
    return len(after)


def write_adapter(base, rows, folder):
    torch.manual_seed(7)
    base.resize_token_embeddings(rows, mean_resizing=True)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["embed_tokens", "lm_head"],
                      ensure_weight_tying=base.config.tie_word_embeddings)
    model = get_peft_model(base, lora).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def main(base_folder, full_folder, adapter_folder, data, written):
    rows = check_tokenizer(base_folder, full_folder)
    assert check_tokenizer(base_folder, adapter_folder) == rows
    resized = load(base_folder)
    resized.resize_token_embeddings(rows, mean_resizing=True)
    full = load(full_folder)
    for ours, theirs in zip((full.get_input_embeddings(), full.get_output_embeddings()),
                            (resized.get_input_embeddings(), resized.get_output_embeddings())):
        assert ours.weight.shape == theirs.weight.shape, (ours.weight.shape, theirs.weight.shape)
        difference = (ours.weight - theirs.weight).abs().max().item()
        assert difference < 1e-4, f"rows differ by {difference}"
    adapted = PeftModel.from_pretrained(resized, adapter_folder).eval()
    theirs = write_adapter(load(base_folder), rows, written)
    AutoTokenizer.from_pretrained(adapter_folder).save_pretrained(written)
    print(json.dumps({"full": mean_loss(full.eval(), data), "adapter": mean_loss(adapted, data),
                      "written": mean_loss(theirs, data)}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:6])
    except AssertionError as fault:
        print(f"failed: {fault}")
        sys.exit(1)
