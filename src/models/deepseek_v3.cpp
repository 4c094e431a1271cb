// DeepSeek-V3, R1 and models of their architecture (Kimi-K2, Moonlight): latent attention; a sigmoid router whose
// choice is corrected by one bias per expert and limited to the best groups.
#include <fmt/format.h>

#include "core/text/json.h"
#include "models/deepseek.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_deepseek_v3(const HfConfig& config) {
  // No auxiliary loss: biases balance the experts, which fine-tuning does not change.
  DecoderConfig decoder = read_deepseek(
      config, {.decoder = {.num_key_value_heads = 128, .max_position_embeddings = 4096, .router_aux_loss_coef = 0},
               .first_k_dense_replace = 3,
               .n_shared_experts = 1,
               .routed_scaling_factor = 2.5});
  // transformers rotates head_dim dimensions, where config.json has the field.
  const int64_t rotated = decoder.latent.qk_rope_head_dim;
  if (const int64_t stated = config.integer_or("head_dim", rotated); stated != rotated) {
    config.refuse(fmt::format("head_dim: {} is not qk_rope_head_dim, which is {}", stated, rotated));
  }
  config.require("scoring_func", "sigmoid");
  config.require("topk_method", "noaux_tc");
  decoder.latent.rope_interleave = config.boolean_or("rope_interleave", true);
  decoder.moe.router.scores = RouterScores::kSigmoid;
  decoder.moe.router.normalise = config.boolean_or("norm_topk_prob", true);
  decoder.moe.selection_bias = true;
  for (const char* key : {"n_group", "topk_group"}) {
    if (config.is_null(key)) config.refuse(fmt::format("{}: null is not supported", key));
  }
  config.read_expert_groups(GroupScore::kTopTwo, config.integer_or("n_group", 8), config.integer_or("topk_group", 4),
                            decoder.moe);
  return decoder;
}

}  // namespace hone
