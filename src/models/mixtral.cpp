// Mixtral (8x7B, 8x22B): every layer sparse, softmax router whose chosen weights are always renormalised, one sliding
// window for all layers. Names in files: block_sparse_moe, w1 (gate), w3 (up), w2 (down).
#include "models/registry.h"

namespace hone {

DecoderConfig read_mixtral(const HfConfig& config) {
  DecoderConfig decoder = config.read_decoder();
  decoder.moe = config.read_moe("intermediate_size");
  decoder.names = {.moe = "mlp", .file_moe = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"};
  for (LayerConfig& layer : decoder.layers) {
    layer.moe = true;
    layer.sliding_window = config.integer_or("sliding_window", 0);
  }
  return decoder;
}

}  // namespace hone
