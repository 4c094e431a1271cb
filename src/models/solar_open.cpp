// Solar-Open (Solar-Open-100B): grouped-query attention and, in every layer, DeepSeek-V3's router and shared expert.
#include "models/registry.h"

namespace hone {

DecoderConfig read_solar_open(const HfConfig& config) {
  const ClassDefaults defaults = {.num_key_value_heads = 8,
                                  .head_dim = 128,
                                  .max_position_embeddings = 131072,
                                  .rms_norm_eps = 1e-5,
                                  .rope_theta = 1e6,
                                  .router_aux_loss_coef = 0};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qkv_bias = config.boolean_or("attention_bias", false);
  config.require("use_qk_norm", false);
  config.require("first_k_dense_replace", 0);
  decoder.moe = config.read_moe("moe_intermediate_size", defaults);
  config.read_corrected_experts(true, 1, decoder);
  for (LayerConfig& layer : decoder.layers) layer.moe = true;
  return decoder;
}

}  // namespace hone
