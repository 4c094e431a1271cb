// Shared by DeepSeek-V2 and DeepSeek-V3: latent attention, leading dense layers, a shared expert, and layers that
// predict further tokens, which are not trained.
#pragma once

#include "models/hf_config.h"

namespace hone {

/// Defaults of fields that config.json lacks.
struct DeepseekDefaults {
  int64_t first_k_dense_replace, n_shared_experts;
  double routed_scaling_factor;
};

/// Everything but the router's rule.
DecoderConfig read_deepseek(const HfConfig& config, const DeepseekDefaults& defaults);

}  // namespace hone
