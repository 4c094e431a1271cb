// Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B): RMSNorm on queries and keys, softmax router over all experts with an
// optional renormalisation of the chosen weights, dense layers among the sparse ones.
#include <algorithm>

#include "models/registry.h"

namespace hone {

DecoderConfig read_qwen3_moe(const HfConfig& config) {
  DecoderConfig decoder = config.read_decoder();
  decoder.qk_norm = true;
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  decoder.moe = config.read_moe("moe_intermediate_size");
  decoder.moe.norm_topk_prob = config.boolean_or("norm_topk_prob", false);
  const int64_t window = config.boolean_or("use_sliding_window", false) ? config.integer_or("sliding_window", 0) : 0;
  const int64_t sparse_step = std::max<int64_t>(config.integer_or("decoder_sparse_step", 1), 1);
  std::vector<int64_t> dense;
  if (config.has("mlp_only_layers")) {
    const Json& layers = config.json().at("mlp_only_layers");
    const auto is_index = [](const Json& layer) { return layer.is_number_integer(); };
    if (!layers.is_array() || !std::all_of(layers.begin(), layers.end(), is_index)) {
      config.refuse("mlp_only_layers is not a list of layers");
    }
    dense = layers.get<std::vector<int64_t>>();
  }
  for (int64_t i = 0; i < static_cast<int64_t>(decoder.layers.size()); ++i) {
    LayerConfig& layer = decoder.layers[static_cast<size_t>(i)];
    layer.sliding_window = window;
    layer.moe = std::find(dense.begin(), dense.end(), i) == dense.end() && (i + 1) % sparse_step == 0;
    if (!layer.moe) layer.intermediate_size = config.integer("intermediate_size");
  }
  return decoder;
}

}  // namespace hone
