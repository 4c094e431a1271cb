// dots.llm1 (dots.llm1.base, dots.llm1.inst): RMSNorm on queries and keys, a window in the layers that layer_types
// names, and DeepSeek-V3's sigmoid router, shared expert and leading dense layers.
#include "models/registry.h"

namespace hone {

DecoderConfig read_dots1(const HfConfig& config) {
  // No auxiliary loss: a selection bias balances the experts, which fine-tuning does not change.
  const ClassDefaults defaults = {.num_key_value_heads = 32, .router_aux_loss_coef = 0};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qk_norm = true;
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  decoder.moe = config.read_moe("moe_intermediate_size", defaults);
  config.integer("n_shared_experts");
  config.read_corrected_experts(false, 0, decoder);
  config.read_leading_dense_layers(0, decoder);
  const int64_t window = config.sliding_window_or(4096),
                first_window_layer = config.integer_or("max_window_layers", 62);
  for (int64_t i = 0; i < static_cast<int64_t>(decoder.layers.size()); ++i) {
    const bool slides = config.layer_uses_window(i, window > 0 && i >= first_window_layer);
    if (slides && window == 0) config.refuse("sliding_window is not set, but layer_types has sliding_attention");
    decoder.layers[static_cast<size_t>(i)].sliding_window = slides ? window : 0;
  }
  return decoder;
}

}  // namespace hone
