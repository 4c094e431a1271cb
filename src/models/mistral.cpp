// Mistral 7B: dense, no norms on queries and keys, no biases, one sliding window for all layers (v0.1) or none (v0.2,
// v0.3).
#include <fmt/format.h>

#include "models/registry.h"

namespace hone {

DecoderConfig read_mistral(const HfConfig& config) {
  DecoderConfig decoder = config.read_decoder({.num_key_value_heads = 8, .max_position_embeddings = 131072});
  config.require("attention_bias", false);
  config.require("mlp_bias", false);
  const int64_t window = config.sliding_window_or(4096);
  for (int64_t i = 0; i < static_cast<int64_t>(decoder.layers.size()); ++i) {
    LayerConfig& layer = decoder.layers[static_cast<size_t>(i)];
    layer.intermediate_size = config.integer("intermediate_size");
    layer.sliding_window = window;
    // The reference ignores layer_types here, other programs do not: only a list that both understand alike is taken.
    if (config.layer_uses_window(i, window > 0) != (window > 0)) {
      config.refuse(fmt::format("layer_types and sliding_window differ in layer {}", i),
                    "layers of MistralForCausalLM all have the window, or none has: correct layer_types or remove it");
    }
  }
  return decoder;
}

}  // namespace hone
