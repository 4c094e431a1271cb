#include "app/bench/bench_shapes.h"

namespace hone {

const std::vector<std::pair<std::string, const char*>>& bench_shapes() {
  static const std::vector<std::pair<std::string, const char*>> list = {
      {"qwen3-30b-a3b", R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": true, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "tie_word_embeddings": false})"},
      {"qwen3-235b-a22b",
       R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 94, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 1536, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": true, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "tie_word_embeddings": false})"},
      {"mixtral-8x7b", R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32000,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-05,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
        "tie_word_embeddings": false})"},
      {"mixtral-8x22b", R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32768,
        "hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48,
        "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-05,
        "max_position_embeddings": 65536, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": false})"},
      {"deepseek-v2-lite", R"({"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
        "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": null, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1,
        "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "topk_method": "greedy", "norm_topk_prob": false, "routed_scaling_factor": 1.0, "rms_norm_eps": 1e-06,
        "max_position_embeddings": 163840, "rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 40,
        "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096}, "tie_word_embeddings": false})"},
      {"deepseek-v3", R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
           "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "n_group": 8, "topk_group": 4, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-06,
        "max_position_embeddings": 163840, "rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 40,
        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096}, "tie_word_embeddings": false})"},
      {"qwen3-8b", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
        "tie_word_embeddings": false})"},
      {"qwen3-32b", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
        "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
        "tie_word_embeddings": false})"},
      {"qwen3.5-35b-a3b",
       R"({"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "vocab_size": 248320,
        "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "max_position_embeddings": 262144, "rms_norm_eps": 1e-06, "rope_parameters": {"rope_type":
        "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25}, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
        "tie_word_embeddings": false, "router_aux_loss_coef": 0.001})"},
      {"qwen3-next-80b-a3b",
       R"({"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size":
        2048, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-06, "rope_theta": 10000000.0, "partial_rotary_factor":
        0.25, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "intermediate_size":
        5120, "shared_expert_intermediate_size": 512, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4, "decoder_sparse_step": 1, "norm_topk_prob": true, "tie_word_embeddings":
        false, "router_aux_loss_coef": 0.001})"},
      {"gpt-oss-20b",
       R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
           "quantization_config": {"quant_method": "mxfp4"}, "vocab_size": 201088, "hidden_size": 2880,
        "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "swiglu_limit": 7.0, "attention_bias": true,
        "tie_word_embeddings": false, "router_aux_loss_coef": 0.9, "rope_theta": 150000, "rope_scaling":
        {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 4096, "truncate": false}})"},
      {"gpt-oss-120b",
       R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
           "quantization_config": {"quant_method": "mxfp4"}, "vocab_size": 201088, "hidden_size": 2880,
        "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "swiglu_limit": 7.0, "attention_bias": true,
        "tie_word_embeddings": false, "router_aux_loss_coef": 0.9, "rope_theta": 150000, "rope_scaling":
        {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 4096, "truncate": false}})"},
      {"granite-3b-a800m",
       R"({"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "vocab_size": 49155, "hidden_size":
        1536, "intermediate_size": 512, "num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads":
        8, "num_local_experts": 40, "num_experts_per_tok": 8, "max_position_embeddings": 4096, "rms_norm_eps":
        1e-06, "rope_theta": 10000.0, "embedding_multiplier": 12.0, "attention_multiplier": 0.015625,
        "residual_multiplier": 0.22, "logits_scaling": 6.0, "tie_word_embeddings": true, "router_aux_loss_coef":
        0.001})"},
      {"olmoe-7b-a1b",
       R"({"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "vocab_size": 50304, "hidden_size": 2048,
        "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01})"},
      {"qwen2-57b-a14b",
       R"({"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 151936, "hidden_size":
        3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads":
        4, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480, "norm_topk_prob": false, "decoder_sparse_step": 1,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings":
        false, "router_aux_loss_coef": 0.001})"},
      {"glm-4.5-air",
       R"({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 151552, "hidden_size":
        4096, "intermediate_size": 10944, "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads":
        8, "head_dim": 128, "partial_rotary_factor": 0.5, "n_routed_experts": 128, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "n_group": 1,
        "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.0, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000, "attention_bias": true, "use_qk_norm": false,
        "tie_word_embeddings": false})"},
      {"cpu-moe", R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 32000,
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64, "moe_intermediate_size": 512, "num_experts": 32,
        "num_experts_per_tok": 4, "norm_topk_prob": true, "max_position_embeddings": 32768, "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.001, "tie_word_embeddings": false})"},
  };
  return list;
}

}  // namespace hone
