// What Qwen3-Next and Qwen3.5-MoE share: gated DeltaNet layers among full-attention ones, whose output is gated, norms
// whose weights count from one, and a gated shared expert beside the experts.
#pragma once

#include "models/hf_config.h"

namespace hone {

/// All but which layers are sparse and how files are laid out.
DecoderConfig read_gated_hybrid(const HfConfig& config);

}  // namespace hone
