// gpt-oss (gpt-oss-20b, gpt-oss-120b): attention with sinks and biases, a window in every second layer; every layer
// sparse, a softmax over the chosen logits, which equals a renormalised softmax over all; experts with biases and a
// clamped activation. Files hold the experts transposed, gate and up interleaved, or as MXFP4.
#include <fmt/format.h>

#include "models/registry.h"

namespace hone {

DecoderConfig read_gpt_oss(const HfConfig& config) {
  const ClassDefaults defaults = {
      .num_key_value_heads = 8,
      .head_dim = 64,
      .max_position_embeddings = 131072,
      .rms_norm_eps = 1e-5,
      .rope_theta = 150000.0,
      .rope_scaling = {
          .type = RopeType::kYarn, .factor = 32.0, .original_max_position_embeddings = 4096, .truncate = false}};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", true);
  decoder.attention_sinks = true;
  decoder.moe = config.read_moe("intermediate_size", defaults);
  decoder.moe.router_bias = true;
  decoder.moe.expert_bias = true;
  const double limit = config.number_or("swiglu_limit", 7.0);
  if (!(limit > 0)) config.refuse(fmt::format("swiglu_limit: {} is not positive", limit));
  decoder.activation = {MlpActivation::Kind::kClampedSwiglu, 1.702f, static_cast<float>(limit)};
  decoder.names.router = decoder.names.file_router = "router";
  decoder.names.experts = ExpertFiles::kFusedTransposed;
  const int64_t window = config.sliding_window_or(128);
  for (int64_t i = 0; i < static_cast<int64_t>(decoder.layers.size()); ++i) {
    LayerConfig& layer = decoder.layers[static_cast<size_t>(i)];
    layer.moe = true;
    const bool slides = config.layer_uses_window(i, i % 2 == 0);
    if (slides && window == 0) config.refuse("sliding_window is not set, but layers have sliding attention");
    layer.sliding_window = slides ? window : 0;
  }
  return decoder;
}

}  // namespace hone
