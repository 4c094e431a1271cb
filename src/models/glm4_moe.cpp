// GLM-4.5 and its successors (GLM-4.5-Air, GLM-4.6): grouped-query attention with RoPE on half of each head, an
// optional RMSNorm on queries and keys, and DeepSeek-V3's sigmoid router, shared expert and leading dense layers.
#include "models/registry.h"

namespace hone {

DecoderConfig read_glm4_moe(const HfConfig& config) {
  // No auxiliary loss: a selection bias balances the experts, which fine-tuning does not change.
  const ClassDefaults defaults = {.num_key_value_heads = 8,
                                  .max_position_embeddings = 131072,
                                  .rms_norm_eps = 1e-5,
                                  .partial_rotary_factor = 0.5,
                                  .router_aux_loss_coef = 0};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.qk_norm = config.boolean_or("use_qk_norm", false);
  decoder.qkv_bias = config.boolean_or("attention_bias", false);
  decoder.moe = config.read_moe("moe_intermediate_size", defaults);
  config.read_corrected_experts(true, 1, decoder);
  config.read_leading_dense_layers(1, decoder);
  return decoder;
}

}  // namespace hone
