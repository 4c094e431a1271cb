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
  MoeConfig& moe = decoder.moe = config.read_moe("moe_intermediate_size", defaults);
  moe.router.scores = RouterScores::kSigmoid;
  moe.router.normalise = config.boolean_or("norm_topk_prob", true);
  moe.router.scale = static_cast<float>(config.number_or("routed_scaling_factor", 1.0));
  config.read_expert_groups(GroupScore::kTopTwo, config.integer_or("n_group", 1), config.integer_or("topk_group", 1),
                            moe);
  moe.selection_bias = true;
  moe.shared_expert_intermediate_size = moe.moe_intermediate_size * config.integer_or("n_shared_experts", 1);
  decoder.names.shared_expert = "mlp.shared_experts";
  config.read_leading_dense_layers(1, decoder);
  return decoder;
}

}  // namespace hone
