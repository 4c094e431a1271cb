// Qwen3, dense: RMSNorm on queries and keys; layers from max_window_layers on may use a sliding window.
#include "models/registry.h"

namespace hone {

DecoderConfig read_qwen3(const HfConfig& config) {
  DecoderConfig decoder =
      config.read_decoder({.num_key_value_heads = 32, .head_dim = 128, .max_position_embeddings = 32768});
  decoder.qk_norm = true;
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  for (LayerConfig& layer : decoder.layers) layer.intermediate_size = config.integer("intermediate_size");
  config.read_late_windows(decoder);
  return decoder;
}

}  // namespace hone
