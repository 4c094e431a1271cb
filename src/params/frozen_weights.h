// Frozen weights in formats of fewer bytes, or that products read faster (formats/weight_format.h).
#pragma once

#include "params/parameter_store.h"

namespace hone {

/// Has all weights of routed experts held in a format; before allocation, and before adapters are attached. UserError,
/// with the config key `key`, if there are none or the format does not fit their sizes.
void hold_experts_in(ParameterStore& store, const WeightFormat& format, const std::string& key);

/// Whether there are routed experts, and of sizes that fit the format.
bool experts_fit(const ParameterStore& store, const WeightFormat& format);

/// Whether no weight of experts is in another format.
bool experts_are_dense(const ParameterStore& store);

/// Orders the frozen experts that are dense as tiles, where products gain from it; once they are loaded, and
/// where nobody saves them.
void order_frozen_experts(ParameterStore& store, ThreadPool& pool);

/// The same for experts and all matrices of linear layers: for steps of many tokens. A product of one token, as answers
/// take, reads a plain matrix faster.
void order_frozen_weights(ParameterStore& store, ThreadPool& pool);

}  // namespace hone
