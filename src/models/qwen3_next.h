// The parts that Qwen3-Next and Qwen3.5-MoE share: gated DeltaNet layers among full-attention layers with gated output,
// norms with weight 1 + w, and a gated shared expert.
#pragma once

#include "models/hf_config.h"

namespace hone {

/// Reads everything but the sparse layers and the layout of files.
DecoderConfig read_gated_hybrid(const HfConfig& config);

}  // namespace hone
