// What DeepSeek-V2 and DeepSeek-V3 share: latent attention, leading dense layers, an expert that all tokens share, and
// layers that predict further tokens, which training leaves as they are.
#pragma once

#include "models/hf_config.h"

namespace hone {

/// What fields stand for that config.json does not have.
struct DeepseekDefaults {
  int64_t first_k_dense_replace, n_shared_experts;
  double routed_scaling_factor;
};

/// All but the router's rule.
DecoderConfig read_deepseek(const HfConfig& config, const DeepseekDefaults& defaults);

}  // namespace hone
