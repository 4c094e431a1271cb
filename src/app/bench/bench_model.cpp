#include "app/bench/bench_model.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "core/error.h"

namespace hone {

namespace {

/// config.json of each shape, as the released models have it; cpu-moe is what one CPU trains in seconds.
const std::vector<std::pair<std::string, const char*>>& shapes() {
  static const std::vector<std::pair<std::string, const char*>> list = {
      {"qwen3-30b-a3b", R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": true, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "tie_word_embeddings": false})"},
      {"mixtral-8x7b", R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32000,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-05,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
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
      {"cpu-moe", R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 32000,
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64, "moe_intermediate_size": 512, "num_experts": 32,
        "num_experts_per_tok": 4, "norm_topk_prob": true, "max_position_embeddings": 32768, "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.001, "tie_word_embeddings": false})"},
  };
  return list;
}

HfConfig named_or_read(const std::string& name) {
  for (const auto& [shape, text] : shapes()) {
    if (shape == name) return HfConfig(Json::parse(text), shape);
  }
  if (std::filesystem::is_directory(name)) return HfConfig::read(name);
  if (std::filesystem::is_regular_file(name)) return HfConfig::read_file(name);
  const std::vector<std::string> names = bench_model_names();
  throw UserError(fmt::format("'{}' is neither a model folder, nor a config.json, nor a shape that is known.{}", name,
                              did_you_mean(name, names)),
                  "--model",
                  fmt::format("use one of {}, or a config.json or the folder of one", fmt::join(names, ", ")));
}

}  // namespace

std::vector<std::string> bench_model_names() {
  std::vector<std::string> names;
  for (const auto& [shape, text] : shapes()) names.push_back(shape);
  return names;
}

HfConfig bench_model(const std::string& name_or_folder, int64_t layers) {
  const HfConfig config = named_or_read(name_or_folder);
  if (layers == 0) return config;
  Json json = config.json();
  const int64_t all = config.integer("num_hidden_layers");
  if (layers < 0 || layers > all) {
    throw UserError(fmt::format("{} of {} layers cannot be run", layers, all), "--layers",
                    fmt::format("use 1 to {}, or 0 for all", all));
  }
  json["num_hidden_layers"] = layers;
  return HfConfig(std::move(json), config.file());
}

}  // namespace hone
