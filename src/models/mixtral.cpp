// Mixtral (8x7B, 8x22B): every layer sparse, softmax router whose chosen weights are always renormalised, one sliding
// window for all layers. Names in files: block_sparse_moe, w1 (gate), w3 (up), w2 (down).
#include <fmt/format.h>

#include "core/base/float_value.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_mixtral(const HfConfig& config) {
  const ClassDefaults defaults = {
      .num_key_value_heads = 8, .max_position_embeddings = 131072, .rms_norm_eps = 1e-5, .rope_theta = 1e6};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.moe = config.read_moe("intermediate_size", defaults);
  const double jitter = decoder.moe.router_jitter_noise = config.number_or("router_jitter_noise", 0.0);
  if (!is_below_one(jitter)) {
    config.refuse(fmt::format("router_jitter_noise: {} is not in [0, 1) in float32", jitter));
  }
  decoder.names = {.moe = "mlp", .file_moe = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  for (LayerConfig& layer : decoder.layers) {
    layer.moe = true;
    layer.sliding_window = config.sliding_window_or(0);
  }
  return decoder;
}

}  // namespace hone
