#include "params/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/memory/buffer.h"
#include "core/stream/transfer.h"
#include "ops/cast/cast.h"
#include "ops/random_fill/random_fill.h"
#include "params/context_of.h"
#include "params/payload.h"

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
  if (parameter.spec().initial != InitialValues::kOfKind) return parameter.spec().initial;
  switch (parameter.spec().kind) {
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
  const int64_t matrices = parameter.shape().numel() / (rows * columns),
                together = parameter.value().format().rows_together(parameter.shape());
  const auto buffer = std::make_shared<Buffer>(context.device(), static_cast<size_t>(rows * columns) * sizeof(float));
  const Tensor wide = buffer->tensor({rows, columns}, DType::kF32);
  for (int64_t e = 0; e < matrices; ++e) {
    fill(context, wide, initial_of(parameter),
         {random.standard_deviation, mix_key(random.key, static_cast<uint64_t>(e))});
    context.launch(
        [=, owner = buffer, format = &parameter.value().format(), to = encoded(parameter)](ThreadPool& pool) {
          pool.parallel_for(rows / together, [&](int64_t i, int) {
            format->fill(to, e * rows + i * together, together, wide.as<float>() + i * together * columns);
          });
        });
  }
}

/// Chunks of a few matrices of each shape, which all packed weights of that shape share in turn: their numbers are not
/// trained, and to draw 235 billion takes a host minutes.
class RandomChunks {
 public:
  void fill(const Context& context, const Parameter& parameter, float standard_deviation) {
    const Tensor& to = parameter.value().stored().payload;
    if (context.dry() || !to.defined() || to.numel() == 0) return;
    const int64_t matrices = to.shape[0], bytes = to.shape[1], drawn = std::min(kDistinct, matrices);
    const auto range = [&](int64_t first, int64_t count) {
      return Tensor{to.data + first * bytes, DType::kU8, {count * bytes}, to.device};
    };
    context.stream().synchronize();
    copy_from_host(range(0, drawn), chunks_of(context.stream().pool(), parameter, standard_deviation).data(),
                   static_cast<size_t>(drawn * bytes));
    for (int64_t have = drawn; have < matrices; have *= 2) {
      const int64_t count = std::min(have, matrices - have);
      if (to.device.kind == DeviceKind::kCpu) {
        std::memcpy(range(have, count).data, to.data, static_cast<size_t>(count * bytes));
      } else {
        copy(context, range(0, count), range(have, count));
      }
    }
  }

 private:
  static constexpr int64_t kDistinct = 4;

  const std::vector<std::byte>& chunks_of(ThreadPool& pool, const Parameter& parameter, float standard_deviation) {
    const PackedLayout layout = packed_layout(parameter);
    std::vector<std::byte>& chunks = drawn_[{&parameter.value().format(), layout.rows, layout.columns}];
    if (!chunks.empty()) return chunks;
    chunks.resize(static_cast<size_t>(kDistinct * layout.bytes));
    std::vector<float> values(static_cast<size_t>(layout.elements()));
    for (int64_t i = 0; i < kDistinct; ++i) {
      pool.parallel_for(layout.rows, [&](int64_t row, int) {
        PhiloxSequence random(mix_key(static_cast<uint64_t>(i), static_cast<uint64_t>(row)));
        float* at = values.data() + row * layout.columns;
        for (int64_t k = 0; k < layout.columns; ++k) at[k] = standard_deviation * random.normal();
      });
      static_cast<const PackedFormat&>(parameter.value().format())
          .pack(layout, values.data(), chunks.data() + i * layout.bytes);
    }
    return chunks;
  }

  std::map<std::tuple<const WeightFormat*, int64_t, int64_t>, std::vector<std::byte>> drawn_;
};

}  // namespace

uint64_t random_key(uint64_t seed, const std::string& parameter_name) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  for (const char c : parameter_name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return mix_key(seed, hash);
}

void fill_stored(const Context& context, const Parameter& parameter, const std::function<void(const Tensor&)>& fill) {
  if (!parameter.value().home().sharded && !parameter.share().spread()) return fill(parameter.value().whole());
  Buffer memory(context.device(), static_cast<size_t>(parameter.shape().numel()) * size_of(parameter.value().dtype()));
  const Tensor whole = memory.tensor(parameter.shape(), parameter.value().dtype());
  fill(whole);
  const Slice own = parameter.share().own();
  Tensor part = whole;
  part.data += static_cast<size_t>(own.begin) * size_of(whole.dtype);
  part.shape = parameter.value().stored().payload.shape;
  if (own.count > 0) copy(context, part, parameter.value().stored().payload);
  if (!context.dry()) context.stream().synchronize();  // the memory is local
}

void initialise_weights(const Context& device, ParameterStore& store, double initializer_range, uint64_t seed) {
  RandomChunks chunks;
  ContextOf context_of(device);
  for (const Parameter& parameter : store.all()) {
    if (parameter.spec().kind == ParameterKind::kLora || !parameter.value().filled_here()) continue;
    context_of.finish();  // the pool is free
    const Context& context = context_of(parameter);
    const RandomValues random{static_cast<float>(initializer_range), random_key(seed, parameter.name())};
    if (parameter.value().packed()) {
      chunks.fill(context, parameter, random.standard_deviation);
      continue;
    }
    if (!parameter.value().format().dense()) {
      fill_encoded(context, parameter, random);
      continue;
    }
    const auto draw = [&](const Tensor& values) { fill(context, values, initial_of(parameter), random); };
    fill_stored(context, parameter, draw);
    if (!parameter.state().has_master()) continue;
    // The master copy draws the same numbers, so that the value is its rounding.
    const bool part = parameter.share().sharded() || parameter.share().spread();
    part ? cast(context, own_value(parameter), parameter.state().master) : draw(parameter.state().master);
  }
  context_of.finish();
}

}  // namespace hone
