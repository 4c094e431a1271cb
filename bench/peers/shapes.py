"""Shapes of released models as transformers configs, and the model FLOPs of a token: the same as `hone bench` has."""
from transformers import MixtralConfig, Qwen3Config, Qwen3MoeConfig

NAMES = ("qwen3-30b-a3b", "mixtral-8x7b", "qwen3-8b", "qwen3-32b", "cpu-moe")


def config(name, layers=0):
    """`layers`: the first so many; 0: all."""
    if name == "qwen3-30b-a3b":
        return Qwen3MoeConfig(
            vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=layers or 48,
            num_attention_heads=32, num_key_value_heads=4, head_dim=128, moe_intermediate_size=768, num_experts=128,
            num_experts_per_tok=8, norm_topk_prob=True, max_position_embeddings=40960, rope_theta=1e6,
            router_aux_loss_coef=0.001)
    if name == "mixtral-8x7b":
        return MixtralConfig(
            vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers or 32,
            num_attention_heads=32, num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2)
    if name == "qwen3-8b":
        return Qwen3Config(
            vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=layers or 36,
            num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False)
    if name == "qwen3-32b":
        return Qwen3Config(
            vocab_size=151936, hidden_size=5120, intermediate_size=25600, num_hidden_layers=layers or 64,
            num_attention_heads=64, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False)
    if name == "cpu-moe":  # what one CPU trains in seconds
        return Qwen3MoeConfig(
            vocab_size=32000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers or 8,
            num_attention_heads=16, num_key_value_heads=4, head_dim=64, moe_intermediate_size=512, num_experts=32,
            num_experts_per_tok=4, norm_topk_prob=True, router_aux_loss_coef=0.001)
    raise SystemExit(f"unknown shape {name}: use one of {', '.join(NAMES)}")


def is_sparse(cfg):
    return hasattr(cfg, "num_experts_per_tok")


def forward_flops(cfg, seq):
    """Multiply-adds x 2 of a token: products, and causal attention of which a token sees half."""
    hidden, layers = cfg.hidden_size, cfg.num_hidden_layers
    head_dim = getattr(cfg, "head_dim", None) or hidden // cfg.num_attention_heads
    attention = hidden * head_dim * 2 * (cfg.num_attention_heads + cfg.num_key_value_heads)
    mlp = 3 * hidden * cfg.intermediate_size
    if is_sparse(cfg):
        experts = getattr(cfg, "num_experts", None) or cfg.num_local_experts
        inner = getattr(cfg, "moe_intermediate_size", None) or cfg.intermediate_size
        mlp = 3 * hidden * inner * cfg.num_experts_per_tok + hidden * experts
    scores = 2 * 2 * (seq / 2) * cfg.num_attention_heads * head_dim
    return 2 * (layers * (attention + mlp) + hidden * cfg.vocab_size) + layers * scores
