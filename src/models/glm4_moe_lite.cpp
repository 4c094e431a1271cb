// GLM-4.7-Flash: DeepSeek-V3's latent attention, with values as wide as queries and keys, and GLM-4.5's router and
// shared expert. mlp_layer_types names the sparse layers.
#include "models/deepseek.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_glm4_moe_lite(const HfConfig& config) {
  DecoderConfig decoder = read_deepseek(config, {.decoder = {.num_key_value_heads = 20,
                                                             .max_position_embeddings = 202752,
                                                             .rms_norm_eps = 1e-5,
                                                             .router_aux_loss_coef = 0},
                                                 .first_k_dense_replace = 1,
                                                 .n_shared_experts = 1,
                                                 .routed_scaling_factor = 1.8,
                                                 .q_lora_rank = 768});
  read_corrected_router(config, 1, 1, decoder);
  config.read_kinds_of_mlp(decoder);
  return decoder;
}

}  // namespace hone
