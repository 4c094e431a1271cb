#include "params/frozen_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "formats/tiled_weights.h"
#include "params/expert_parts.h"

namespace hone {

namespace {

/// Whether only `linear` reads it.
bool read_by_linear_alone(const Parameter& p) {
  const bool of_layer = p.spec().kind == ParameterKind::kAttention || p.spec().kind == ParameterKind::kAttentionGate ||
                        p.spec().kind == ParameterKind::kMlp;
  return of_layer && p.shape().rank() == 2;
}

template <class Chosen>
void order(ParameterStore& store, ThreadPool& pool, Chosen chosen) {
  for (Parameter& p : store.all()) {
    if (!chosen(p) || p.trainable() || p.value().home().brought || !p.value().format().dense()) continue;
    if (p.fp8().recipe != Fp8Recipe::kOff) continue;
    if (gains_from_tiles(p.value().stored().payload.device, p.value().dtype(), p.local_shape()))
      p.value().order_as_tiles(pool);
  }
}

}  // namespace

bool is_base_weight(const Parameter& parameter) {
  return parameter.spec().layer >= 0 && (is_experts(parameter) || read_by_linear_alone(parameter));
}

bool can_multiply_in_fp8(const Parameter& parameter) {
  if (is_experts(parameter)) return &parameter.value().format() == &fp8_matrix_format();
  return parameter.spec().layer >= 0 && read_by_linear_alone(parameter) && parameter.shape()[0] % kFp8Unit == 0 &&
         parameter.shape()[1] % kFp8Unit == 0;
}

void hold_frozen_in(Parameter& parameter, const WeightFormat& format) {
  parameter.set_trainable(false);
  parameter.value().hold_in(format);
}

void hold_experts_in(ParameterStore& store, const WeightFormat& format, const std::string& key) {
  bool any = false;
  for (Parameter& parameter : store.all()) {
    if (!is_experts(parameter)) continue;
    const Shape& shape = parameter.shape();
    if (!format.fits(shape)) {
      throw UserError(fmt::format("each expert of '{}' is {} x {}: {} takes {}", parameter.name(), shape[1], shape[2],
                                  format.name(), format.sizes()),
                      key, "leave it out: this model's experts are held in dtype");
    }
    hold_frozen_in(parameter, format);
    any = true;
  }
  if (!any) {
    throw UserError(fmt::format("the model has no routed experts to hold in {}", format.name()), key, "leave it out");
  }
}

bool experts_fit(const ParameterStore& store, const WeightFormat& format) {
  return std::any_of(store.all().begin(), store.all().end(), is_experts) &&
         std::all_of(store.all().begin(), store.all().end(),
                     [&](const Parameter& p) { return !is_experts(p) || format.fits(p.shape()); });
}

void order_frozen_experts(ParameterStore& store, ThreadPool& pool) { order(store, pool, is_experts); }

void order_frozen_weights(ParameterStore& store, ThreadPool& pool) {
  order(store, pool, [](const Parameter& p) { return is_experts(p) || read_by_linear_alone(p); });
}

std::set<int> layers_with_experts(const ParameterStore& store) {
  std::set<int> layers;
  for (const Parameter& p : store.all()) {
    if (p.spec().of_experts) layers.insert(p.spec().layer);
  }
  return layers;
}

bool experts_are_dense(const ParameterStore& store) {
  return std::all_of(store.all().begin(), store.all().end(),
                     [](const Parameter& p) { return !is_experts(p) || p.value().format().dense(); });
}

}  // namespace hone
