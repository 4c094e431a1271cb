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
  const std::vector<std::string> names = bench_model_names();
  throw UserError(
      fmt::format("'{}' is neither a model folder nor a shape that is known.{}", name, did_you_mean(name, names)),
      "--model", fmt::format("use one of {}, or a folder with a config.json", fmt::join(names, ", ")));
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

double forward_flops_per_token(const DecoderConfig& config, int64_t seq) {
  const auto hidden = static_cast<double>(config.hidden_size), head_dim = static_cast<double>(config.head_dim);
  const auto heads = static_cast<double>(config.num_attention_heads);
  const double attention = hidden * head_dim * 2 * (heads + static_cast<double>(config.num_key_value_heads));
  const double scores = 2 * heads * head_dim * static_cast<double>(seq) / 2;  // q·k and p·v
  double products = hidden * static_cast<double>(config.vocab_size);
  for (const LayerConfig& layer : config.layers) {
    const double mlp = layer.moe
                           ? static_cast<double>(config.moe.moe_intermediate_size * config.moe.num_experts_per_tok)
                           : static_cast<double>(layer.intermediate_size);
    const double router = layer.moe ? hidden * static_cast<double>(config.moe.num_experts) : 0;
    products += attention + scores + 3 * hidden * mlp + router;
  }
  return 2 * products;
}

}  // namespace hone
