// Qwen3, dense: RMSNorm on queries and keys; layers from max_window_layers on may use a sliding window.
#include "models/registry.h"

namespace hone {

DecoderConfig read_qwen3(const HfConfig& config) {
  DecoderConfig decoder =
      config.read_decoder({.num_key_value_heads = 32, .head_dim = 128, .max_position_embeddings = 32768});
  decoder.qk_norm = true;
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  const int64_t window = config.boolean_or("use_sliding_window", false) ? config.sliding_window_or(4096) : 0;
  const int64_t first_window_layer = config.integer_or("max_window_layers", 28);
  for (int64_t i = 0; i < static_cast<int64_t>(decoder.layers.size()); ++i) {
    LayerConfig& layer = decoder.layers[static_cast<size_t>(i)];
    layer.intermediate_size = config.integer("intermediate_size");
    if (window == 0 && config.layer_uses_window(i, false)) {
      config.refuse(
          "layer_types has sliding_attention, but use_sliding_window or sliding_window says that there is none");
    }
    layer.sliding_window = config.layer_uses_window(i, i >= first_window_layer) ? window : 0;
  }
  return decoder;
}

}  // namespace hone
