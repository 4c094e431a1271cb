// Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B): RMSNorm on queries and keys, softmax router over all experts with an
// optional renormalisation of the chosen weights, dense layers among the sparse ones.
#include "models/registry.h"

namespace hone {

DecoderConfig read_qwen3_moe(const HfConfig& config) {
  const ClassDefaults defaults = {.num_key_value_heads = 4, .max_position_embeddings = 32768};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qk_norm = true;
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  decoder.moe = config.read_moe("moe_intermediate_size", defaults);
  decoder.moe.router.normalise = config.boolean_or("norm_topk_prob", false);
  config.read_sparse_layers(decoder);
  const int64_t window = config.boolean_or("use_sliding_window", false) ? config.sliding_window_or(4096) : 0;
  for (LayerConfig& layer : decoder.layers) layer.sliding_window = window;
  return decoder;
}

}  // namespace hone
