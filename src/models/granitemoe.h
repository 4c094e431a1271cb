// What Granite's MoE models share.
#pragma once

#include "models/hf_config.h"

namespace hone {

/// Reads the multipliers and whether attention has biases; names the tensors of routers, experts and the shared MLP.
void read_granite(const HfConfig& config, DecoderConfig& decoder);

}  // namespace hone
