#include "params/random_weights.h"

#include "core/philox.h"
#include "ops/cast/cast.h"
#include "ops/random_fill/random_fill.h"

namespace hone {

namespace {

void fill_ones(const Context& context, const Tensor& tensor) {
  dispatch_float(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    context.stream().upload(tensor, std::vector<T>(static_cast<size_t>(tensor.numel()), T(1.0f)));
  });
}

}  // namespace

uint64_t random_key(uint64_t seed, const std::string& parameter_name) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  for (const char c : parameter_name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return mix_key(seed, hash);
}

void initialise_weights(const Context& context, ParameterStore& store, double initializer_range, uint64_t seed) {
  for (const Parameter& parameter : store.all()) {
    const ParameterKind kind = parameter.kind();
    if (kind == ParameterKind::kLora) continue;
    // The master copy draws the same numbers, so that the value is its rounding.
    std::vector<Tensor> copies = {parameter.value()};
    if (parameter.has_master()) copies.push_back(parameter.master());
    for (const Tensor& copy : copies) {
      if (kind == ParameterKind::kNorm) {
        fill_ones(context, copy);
      } else if (kind == ParameterKind::kBias || kind == ParameterKind::kBuffer) {
        fill_zero(context, copy);
      } else {
        random_fill(context, {.dst = copy,
                              .distribution = Distribution::kNormal,
                              .scale = static_cast<float>(initializer_range),
                              .key = random_key(seed, parameter.name())});
      }
    }
  }
}

}  // namespace hone
