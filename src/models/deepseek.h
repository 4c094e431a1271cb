// The parts that DeepSeek-V2 and DeepSeek-V3 share: latent attention, leading dense layers, a shared expert, and
// multi-token prediction layers, which are not trained.
#pragma once

#include "models/hf_config.h"

namespace hone {

/// Defaults of fields that are missing from config.json.
struct DeepseekDefaults {
  ClassDefaults decoder;
  int64_t first_k_dense_replace, n_shared_experts;
  double routed_scaling_factor;
};

/// Reads everything but the router's rule.
DecoderConfig read_deepseek(const HfConfig& config, const DeepseekDefaults& defaults);

}  // namespace hone
