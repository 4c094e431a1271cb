// DeepSeek-V3, R1 and models of their architecture (Kimi-K2, Moonlight): latent attention; a sigmoid router whose
// choice is corrected by one bias per expert and limited to the best groups.
#include "models/deepseek.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_deepseek_v3(const HfConfig& config) {
  DecoderConfig decoder = read_deepseek(
      config, {.decoder = {.num_key_value_heads = 128, .max_position_embeddings = 4096, .router_aux_loss_coef = 0},
               .first_k_dense_replace = 3,
               .n_shared_experts = 1,
               .routed_scaling_factor = 2.5});
  read_corrected_router(config, 8, 4, decoder);
  return decoder;
}

}  // namespace hone
