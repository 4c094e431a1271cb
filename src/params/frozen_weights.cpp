#include "params/frozen_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "formats/int8_weights.h"
#include "formats/tiled_weights.h"

namespace hone {

namespace {

bool of_experts(const Parameter& p) {
  return p.kind() == ParameterKind::kExpertsGateUp || p.kind() == ParameterKind::kExpertsDown;
}

/// Whether `linear` alone reads it.
bool is_linear(const Parameter& p) {
  const bool of_layer = p.kind() == ParameterKind::kAttention || p.kind() == ParameterKind::kAttentionGate ||
                        p.kind() == ParameterKind::kMlp;
  return of_layer && p.shape().rank() == 2;
}

template <class Chosen>
void order(ParameterStore& store, ThreadPool& pool, Chosen chosen) {
  for (Parameter& p : store.all()) {
    if (!chosen(p) || p.trainable() || p.sharded()) continue;
    if (gains_from_tiles(p.value().device, p.dtype(), p.shape())) p.order_as_tiles(pool);
  }
}

}  // namespace

void hold_experts_in_int8(ParameterStore& store, const std::string& key) {
  for (Parameter& parameter : store.all()) {
    if (!of_experts(parameter)) continue;
    const Shape& shape = parameter.shape();
    if (!fits_int8(shape)) {
      throw UserError(fmt::format("each expert of '{}' is {} x {}: in 8 bits both must be multiples of {}",
                                  parameter.name(), shape[1], shape[2], kInt8TileColumns),
                      key, "leave it out: this model's experts are held in dtype");
    }
    parameter.hold_in_int8();
  }
  if (!has_int8_experts(store))
    throw UserError("the model has no routed experts to hold in 8 bits", key, "leave it out");
}

bool experts_fit_int8(const ParameterStore& store) {
  return std::any_of(store.all().begin(), store.all().end(), of_experts) &&
         std::all_of(store.all().begin(), store.all().end(),
                     [](const Parameter& p) { return !of_experts(p) || fits_int8(p.shape()); });
}

void order_frozen_experts(ParameterStore& store, ThreadPool& pool) { order(store, pool, of_experts); }

void order_frozen_weights(ParameterStore& store, ThreadPool& pool) {
  order(store, pool, [](const Parameter& p) { return of_experts(p) || is_linear(p); });
}

bool has_int8_experts(const ParameterStore& store) {
  return std::any_of(store.all().begin(), store.all().end(), [](const Parameter& p) { return p.held_in_int8(); });
}

}  // namespace hone
