// Random weights, made on the device that holds them.
#pragma once

#include <functional>
#include <string>

#include "params/parameter_store.h"

namespace hone {

/// Values as each parameter's `initial` says, normal ones with standard deviation `initializer_range`; adapters are
/// left to initialise_lora. A value depends only on the seed, the parameter's name and its index. Needs allocated
/// memory on the context's device; queued there.
void initialise_weights(const Context& context, ParameterStore& store, double initializer_range, uint64_t seed);

/// Calls `fill` to write all values of a dense parameter, in its dtype; elements that this rank does not keep are
/// dropped. May wait for the stream.
void fill_stored(const Context& context, const Parameter& parameter, const std::function<void(const Tensor&)>& fill);

/// The key of a parameter's random numbers.
uint64_t random_key(uint64_t seed, const std::string& parameter_name);

}  // namespace hone
