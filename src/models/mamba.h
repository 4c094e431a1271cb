// What models with layers of Mamba-2 share.
#pragma once

#include <utility>

#include "models/hf_config.h"

namespace hone {

/// The names that an architecture has for the fields of Mamba-2's sizes.
struct MambaKeys {
  const char *heads, *head_dim, *groups, *state_size, *conv_taps;
};

/// A size of Mamba-2; UserError unless it is positive and plausible.
int64_t read_mamba_size(const HfConfig& config, const char* key, int64_t fallback);
/// UserError unless the sizes fit together, and the kernels.
void check_mamba(const HfConfig& config, const MambaKeys& keys, const Mamba2Config& mamba);

/// The bounds of a step in time_step_limit; 0 and infinity if it is not there.
std::pair<float, float> read_time_step_limit(const HfConfig& config);

}  // namespace hone
