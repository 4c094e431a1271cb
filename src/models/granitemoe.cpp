// Granite's MoE models (granite-3.0-1b-a400m, granite-3.0-3b-a800m, …; GraniteMoeShared has a shared expert): every
// layer sparse, a softmax over the chosen logits, which equals a renormalised softmax over all, and constant
// multipliers of the embedding, the residual branches, the attention scores and the logits. Files hold all experts of a
// layer in one tensor.
#include "models/granitemoe.h"

#include <fmt/format.h>

#include "models/registry.h"

namespace hone {

void read_granite(const HfConfig& config, DecoderConfig& decoder) {
  const auto multiplier = [&](const char* key) {
    const double value = config.number_or(key, 1.0);
    if (!(value > 0)) config.refuse(fmt::format("{}: {} is not positive", key, value));
    return value;
  };
  decoder.embedding_multiplier = multiplier("embedding_multiplier");
  decoder.residual_multiplier = multiplier("residual_multiplier");
  decoder.attention_scale = multiplier("attention_multiplier");
  decoder.logits_scaling = multiplier("logits_scaling");
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  decoder.names = {.moe = "block_sparse_moe",
                   .file_moe = "block_sparse_moe",
                   .router = "router",
                   .file_router = "router.layer",
                   .experts = ExpertFiles::kFused,
                   .fused_gate_up = "input_linear.weight",
                   .fused_down = "output_linear.weight",
                   .shared_expert = "shared_mlp",
                   .shared_expert_fused = true};
}

DecoderConfig read_granitemoe(const HfConfig& config) {
  const ClassDefaults defaults;
  DecoderConfig decoder = config.read_decoder(defaults);
  read_granite(config, decoder);
  decoder.moe = config.read_moe("intermediate_size", defaults);
  for (LayerConfig& layer : decoder.layers) layer.moe = true;
  return decoder;
}

DecoderConfig read_granitemoeshared(const HfConfig& config) {
  DecoderConfig decoder = read_granitemoe(config);
  decoder.moe.shared_expert_intermediate_size = config.integer("shared_intermediate_size");
  return decoder;
}

}  // namespace hone
