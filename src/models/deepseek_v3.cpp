// DeepSeek-V3, R1 and models of their architecture (Kimi-K2, Moonlight): latent attention; a sigmoid router whose
// choice is corrected by one bias per expert and limited to the best groups.
#include "core/json.h"
#include "models/deepseek.h"
#include "models/registry.h"

namespace hone {

DecoderConfig read_deepseek_v3(const HfConfig& config) {
  DecoderConfig decoder =
      read_deepseek(config, {.first_k_dense_replace = 3, .n_shared_experts = 1, .routed_scaling_factor = 2.5});
  config.require("scoring_func", "sigmoid");
  config.require("topk_method", "noaux_tc");
  decoder.latent.rope_interleave = config.boolean_or("rope_interleave", true);
  decoder.moe.router.scores = RouterScores::kSigmoid;
  decoder.moe.router.normalise = config.boolean_or("norm_topk_prob", true);
  decoder.moe.selection_bias = true;
  config.read_expert_groups(GroupScore::kTopTwo, decoder.moe);
  return decoder;
}

}  // namespace hone
