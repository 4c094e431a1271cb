// Hy3 (Hy3-preview): RMSNorm on queries and keys, and a sigmoid router whose choice is corrected by one bias per
// expert, beside a shared expert; leading dense layers.
#include "core/text/json.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_hy_v3(const HfConfig& config) {
  const ClassDefaults defaults = {.num_key_value_heads = 8,
                                  .head_dim = 128,
                                  .max_position_embeddings = 131072,
                                  .rms_norm_eps = 1e-5,
                                  .rope_theta = 11158840.0,
                                  .router_aux_loss_coef = 0};
  DecoderConfig decoder = config.read_decoder(defaults);
  decoder.initializer_range = config.number_or("initializer_range", 0.006);
  decoder.qk_norm = true;
  decoder.qkv_bias = decoder.o_bias = config.boolean_or("attention_bias", false);
  config.require("mlp_bias", false);
  config.require("qk_norm", true);
  MoeConfig& moe = decoder.moe = config.read_moe("moe_intermediate_size", defaults);
  moe.router.scores = RouterScores::kSigmoid;
  moe.router.scale = static_cast<float>(config.number_or("router_scaling_factor", 2.826));
  moe.selection_bias = true;
  moe.shared_expert_intermediate_size = moe.moe_intermediate_size * config.integer_or("num_shared_experts", 1);
  decoder.names.shared_expert = "mlp.shared_experts";
  decoder.names.file_parts = {{".mlp.shared_experts.", ".mlp.shared_mlp."}};
  decoder.names.file_router = "router.gate";
  decoder.names.selection_bias = "e_score_correction_bias";
  decoder.names.file_selection_bias = "expert_bias";
  config.require("expert_hidden_dim", moe.moe_intermediate_size);
  config.read_kinds_of_mlp(decoder);
  return decoder;
}

}  // namespace hone
