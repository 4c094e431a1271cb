// Llama 2 and 3: dense, full attention, no norms on queries and keys.
#include "models/registry.h"

namespace hone {

DecoderConfig read_llama(const HfConfig& config) {
  DecoderConfig decoder = config.read_decoder({});
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  decoder.mlp_bias = config.boolean_or("mlp_bias", false);
  for (LayerConfig& layer : decoder.layers) layer.intermediate_size = config.integer("intermediate_size");
  return decoder;
}

}  // namespace hone
