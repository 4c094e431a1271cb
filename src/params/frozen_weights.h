// Frozen weights as products on a CPU read them faster: routed experts in 8 bits (formats/int8_weights.h), and
// matrices of bfloat16 in the order of tiles (tiled_weights.h).
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

/// Orders the frozen experts that are not in 8 bits as tiles, where products gain from it; once they are loaded, and
/// where nobody saves them.
void order_frozen_experts(ParameterStore& store, ThreadPool& pool);

/// The same for experts and all matrices of linear layers: for steps of many tokens. A product of one token, as answers
/// take, reads a plain matrix faster.
void order_frozen_weights(ParameterStore& store, ThreadPool& pool);

}  // namespace hone
