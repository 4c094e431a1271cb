// Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): biases on queries, keys and values, a softmax router whose chosen
// weights are usually not renormalised, and a shared expert with a sigmoid gate.
#include "core/text/json.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_qwen2_moe(const HfConfig& config) {
  const ClassDefaults defaults = {.num_key_value_heads = 16, .max_position_embeddings = 32768};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qkv_bias = config.boolean_or("qkv_bias", true);
  decoder.moe = config.read_moe("moe_intermediate_size", defaults);
  decoder.moe.router.normalise = config.boolean_or("norm_topk_prob", false);
  decoder.moe.shared_expert_intermediate_size = config.integer("shared_expert_intermediate_size");
  decoder.moe.shared_expert_gate = true;
  config.read_sparse_layers(decoder);
  config.require("use_sliding_window", false);
  for (int64_t i = 0; i < static_cast<int64_t>(decoder.layers.size()); ++i) {
    if (config.layer_uses_window(i, false)) config.refuse("layer_types: sliding_attention is not supported here");
  }
  return decoder;
}

}  // namespace hone
