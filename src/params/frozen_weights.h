// Frozen weights in formats that take fewer bytes or that products read faster (formats/weight_format.h).
#pragma once

#include <set>

#include "params/expert_parts.h"
#include "params/parameter_store.h"

namespace hone {

/// Whether packed formats are for it (formats/packed_weights.h): a matrix of a layer that `linear` or experts read. The
/// router, norms, the embedding and the head stay in dtype.
bool is_base_weight(const Parameter& parameter);

/// Whether products of 8-bit floats are for it (formats/fp8.h): a matrix of a layer that `linear` alone reads, of sizes
/// that they take; or experts that are held in fp8_matrix.
bool can_multiply_in_fp8(const Parameter& parameter);

/// Freezes a parameter, and sets the format of its value, which fits its shape. Before allocation.
void hold_frozen_in(Parameter& parameter, const WeightFormat& format);

/// Sets the format of all weights of routed experts; before allocation, and before adapters are attached. UserError,
/// with the config key `key`, if there are none or the format does not fit their sizes.
void hold_experts_in(ParameterStore& store, const WeightFormat& format, const std::string& key);

/// Whether there are routed experts whose sizes fit the format.
bool experts_fit(const ParameterStore& store, const WeightFormat& format);

/// Whether all weights of experts are in this format.
bool experts_are_dense(const ParameterStore& store);

/// The layers that have routed experts.
std::set<int> layers_with_experts(const ParameterStore& store);

/// Reorders dense frozen experts as tiles if products gain from it; after loading, and only if they will not be saved.
void order_frozen_experts(ParameterStore& store, ThreadPool& pool);

/// The same for experts and all matrices of linear layers: for steps of many tokens. A product of one token, as in
/// generation, reads a plain matrix faster.
void order_frozen_weights(ParameterStore& store, ThreadPool& pool);

}  // namespace hone
