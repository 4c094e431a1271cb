// Routed experts that are frozen, held in 8 bits on a CPU (ops/moe_experts/int8_weights.h).
#pragma once

#include "params/parameter_store.h"

namespace hone {

/// Has all weights of routed experts held in 8 bits; before allocation, and before adapters are attached. UserError,
/// with the config key `key`, if there are none or their sizes are no multiples of 64.
void hold_experts_in_int8(ParameterStore& store, const std::string& key);

/// Whether there are routed experts, and of sizes that can be held so.
bool experts_fit_int8(const ParameterStore& store);

/// Whether some are.
bool has_int8_experts(const ParameterStore& store);

}  // namespace hone
