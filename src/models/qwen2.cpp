// Qwen2 and Qwen2.5, dense: biases on queries, keys and values, no norms on queries and keys; layers from
// max_window_layers on may use a sliding window.
#include "core/text/json.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_qwen2(const HfConfig& config) {
  DecoderConfig decoder = config.read_decoder({.num_key_value_heads = 32, .max_position_embeddings = 32768});
  config.require("qkv_bias", true);
  decoder.qkv_bias = true;
  for (LayerConfig& layer : decoder.layers) layer.intermediate_size = config.integer("intermediate_size");
  config.read_late_windows(decoder);
  return decoder;
}

}  // namespace hone
