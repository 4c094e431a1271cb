// The parts that DeepSeek-V2, DeepSeek-V3, GLM-4.7-Flash and Mistral-Small-4 share: latent attention, leading dense
// layers, a shared expert, and multi-token prediction layers, which are not trained.
#pragma once

#include "models/hf_config.h"

namespace hone {

/// Defaults of fields that are missing from config.json.
struct DeepseekDefaults {
  ClassDefaults decoder;
  int64_t first_k_dense_replace, n_shared_experts;
  double routed_scaling_factor;
  int64_t q_lora_rank = 1536;  ///< where the field is missing; null: queries are projected in one step
};

/// Reads everything but the router's rule.
DecoderConfig read_deepseek(const HfConfig& config, const DeepseekDefaults& defaults);

/// Reads DeepSeek-V3's router, whose groups have these defaults, and how RoPE pairs dimensions. A selection bias
/// balances the experts, which fine-tuning does not change.
void read_corrected_router(const HfConfig& config, int64_t n_group, int64_t topk_group, DecoderConfig& decoder);

/// Reads groups of experts that are scored by their two best, and have these defaults.
void read_groups_of_two_best(const HfConfig& config, int64_t n_group, int64_t topk_group, MoeConfig& moe);

}  // namespace hone
