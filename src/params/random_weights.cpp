#include "params/random_weights.h"

#include <cmath>

#include "core/buffer.h"
#include "core/philox.h"
#include "core/thread_pool.h"
#include "ops/cast/cast.h"
#include "ops/random_fill/random_fill.h"

namespace hone {

namespace {

/// Each element from `next()`; for small tensors.
template <class Next>
void fill_each(const Context& context, const Tensor& tensor, Next next) {
  dispatch_float(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    std::vector<T> values(static_cast<size_t>(tensor.numel()));
    for (T& value : values) value = T(next());
    context.stream().upload(tensor, std::move(values));
  });
}

InitialValues initial_of(const Parameter& parameter) {
  if (parameter.initial() != InitialValues::kOfKind) return parameter.initial();
  switch (parameter.kind()) {
    case ParameterKind::kNorm:
      return InitialValues::kOnes;
    case ParameterKind::kBias:
    case ParameterKind::kBuffer:
      return InitialValues::kZeros;
    default:
      return InitialValues::kNormal;
  }
}

struct RandomValues {
  float standard_deviation;
  uint64_t key;
};

void fill(const Context& context, const Tensor& tensor, InitialValues initial, const RandomValues& random) {
  switch (initial) {
    case InitialValues::kZeros:
      return fill_zero(context, tensor);
    case InitialValues::kOnes:
      return fill_each(context, tensor, [] { return 1.0f; });
    case InitialValues::kLogOfUniform: {
      PhiloxSequence sequence(random.key);
      return fill_each(context, tensor, [&] { return std::log(0.01f + (16.0f - 0.01f) * sequence.uniform()); });
    }
    case InitialValues::kOfKind:
    case InitialValues::kNormal:
      return random_fill(context, {.dst = tensor,
                                   .distribution = Distribution::kNormal,
                                   .scale = random.standard_deviation,
                                   .key = random.key});
  }
}

/// The numbers of each matrix are drawn in float32, from the key of matrix e, then encoded.
void fill_encoded(const Context& context, const Parameter& parameter, const RandomValues& random) {
  const int64_t rows = parameter.shape()[-2], columns = parameter.shape()[-1];
  const int64_t matrices = parameter.shape().numel() / (rows * columns), together = parameter.format().rows_together();
  const auto buffer = std::make_shared<Buffer>(context.device(), static_cast<size_t>(rows * columns) * sizeof(float));
  const Tensor wide = buffer->tensor({rows, columns}, DType::kF32);
  for (int64_t e = 0; e < matrices; ++e) {
    fill(context, wide, initial_of(parameter),
         {random.standard_deviation, mix_key(random.key, static_cast<uint64_t>(e))});
    context.launch([=, owner = buffer, format = &parameter.format(), to = parameter.encoded()](ThreadPool& pool) {
      pool.parallel_for(rows / together, [&](int64_t i, int) {
        format->fill(to, e * rows + i * together, together, wide.as<float>() + i * together * columns);
      });
    });
  }
}

}  // namespace

uint64_t random_key(uint64_t seed, const std::string& parameter_name) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  for (const char c : parameter_name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return mix_key(seed, hash);
}

void fill_stored(const Context& context, const Parameter& parameter, const std::function<void(const Tensor&)>& fill) {
  if (!parameter.shards_values()) return fill(parameter.value());
  Buffer memory(context.device(), static_cast<size_t>(parameter.shape().numel()) * size_of(parameter.dtype()));
  const Tensor whole = memory.tensor(parameter.shape(), parameter.dtype());
  fill(whole);
  if (parameter.own().count > 0) copy(context, parameter.own_part(whole), parameter.stored().payload);
  if (!context.dry()) context.stream().synchronize();  // the memory is local
}

void initialise_weights(const Context& context, ParameterStore& store, double initializer_range, uint64_t seed) {
  for (const Parameter& parameter : store.all()) {
    if (parameter.kind() == ParameterKind::kLora) continue;
    const RandomValues random{static_cast<float>(initializer_range), random_key(seed, parameter.name())};
    if (!parameter.format().dense()) {
      fill_encoded(context, parameter, random);
      continue;
    }
    const auto draw = [&](const Tensor& values) { fill(context, values, initial_of(parameter), random); };
    fill_stored(context, parameter, draw);
    if (!parameter.has_master()) continue;
    // The master copy draws the same numbers, so that the value is its rounding.
    parameter.sharded() ? cast(context, parameter.own_value(), parameter.master()) : draw(parameter.master());
  }
}

}  // namespace hone
