#include <algorithm>

#include "kernels/cuda/rows/rounded_vectors_cuda.h"
#include "kernels/cuda/rows/tensor_table_cuda.h"
#include "ops/momentum/momentum_step.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kUnroll = 2;
constexpr int64_t kChunk = kThreads * kPlaceWidth * kUnroll * 4;

template <class Parameter, class Gradient, class M>
struct Entry {
  Parameter* parameter;
  __nv_bfloat16* working_copy;  // or null
  M* m;                         // or null
  const Gradient* gradient;
  int64_t elements;
  float weight_decay;
  uint32_t stream_id;
  int64_t first_element;

  __device__ bool is_aligned() const {
    return starts_aligned(parameter) && starts_aligned(working_copy) && starts_aligned(m) && starts_aligned(gradient);
  }
};

struct Constants {
  MomentumRule rule;
  double beta1, beta2, rate_factor;
  bool vectors;
};

/// A CTA updates a chunk of a tensor.
template <class Table>
__global__ void __launch_bounds__(kThreads)
    momentum_kernel(const __grid_constant__ Table table, const Constants constants, const StepScalars* scalars) {
  if (scalars->nonfinite != 0) return;
  const int index = table.find(blockIdx.x);
  const auto& entry = table.entries[index];
  const MomentumStep step = MomentumStep::of(*scalars, constants.rule, constants.beta1, constants.beta2,
                                             constants.rate_factor, static_cast<double>(entry.weight_decay));
  const uint64_t key = mix_key(scalars->seed, entry.stream_id);
  const bool vectors = constants.vectors && entry.is_aligned();
  const int64_t begin = table.begin(index, blockIdx.x), end = min(entry.elements, begin + kChunk);
  for (int64_t first = begin + threadIdx.x * kPlaceWidth; first < end; first += kThreads * kPlaceWidth * kUnroll) {
    Place places[kUnroll];
    float p[kUnroll][kPlaceWidth], m[kUnroll][kPlaceWidth] = {}, g[kUnroll][kPlaceWidth];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = first + u * kThreads * kPlaceWidth, rest = end - at;
      const int count = rest < 0 ? 0 : rest < kPlaceWidth ? static_cast<int>(rest) : kPlaceWidth;
      places[u] = {at, count, vectors && count == kPlaceWidth};
      load(entry.parameter, places[u], p[u]);
      load(entry.gradient, places[u], g[u]);
      if (entry.m != nullptr) load(entry.m, places[u], m[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < kPlaceWidth; ++i) step.update(p[u][i], m[u][i], g[u][i]);
      std::array<uint32_t, kPlaceWidth> words{};
      if constexpr (sizeof(*entry.parameter) == 2) {
        words = rounding_words(key, entry.first_element + places[u].first, RoundingUse::kParameter);
      }
      store_rounded(entry.parameter, places[u], p[u], words, 0);
      if (entry.working_copy != nullptr) store(entry.working_copy, places[u], p[u]);
      if (entry.m == nullptr) continue;
      if constexpr (sizeof(*entry.m) == 2)
        words = rounding_words(key, entry.first_element + places[u].first, RoundingUse::kMoments);
      store_rounded(entry.m, places[u], m[u], words, 0);
    }
  }
}

/// Properties that all tensors of one launch must share. An absent moment matches any format.
struct Formats {
  DType parameter, gradient, m;
  bool operator==(const Formats&) const = default;
};

Formats formats_of(const MomentumTensor& tensor) {
  return {tensor.parameter.dtype, tensor.gradient.dtype, tensor.m.defined() ? tensor.m.dtype : DType::kF32};
}

/// Updates the tensors with these formats.
template <class Parameter, class Gradient, class M>
void update(const Context& context, const MomentumArgs& args, const Formats& formats) {
  const Constants constants{args.rule, args.beta1, args.beta2, args.rate_factor, !context.stream().general_kernels()};
  using Table = TensorTable<Entry<Parameter, Gradient, M>, 64, kChunk>;
  static_assert(sizeof(Table) <= 3900);
  Table table;
  const auto launch = [&] {
    if (table.chunks == 0) return;
    momentum_kernel<Table><<<table.chunks, kThreads, 0, stream_of(context)>>>(table, constants, args.scalars);
    check_launch("updating parameters");
    table = {};
  };
  for (const MomentumTensor& tensor : args.tensors) {
    if (formats_of(tensor) != formats) continue;
    if (table.full()) launch();
    table.add({.parameter = elements<Parameter>(tensor.parameter),
               .working_copy = elements<__nv_bfloat16>(tensor.working_copy),
               .m = elements<M>(tensor.m),
               .gradient = elements<Gradient>(tensor.gradient),
               .elements = tensor.parameter.numel(),
               .weight_decay = static_cast<float>(tensor.weight_decay),
               .stream_id = tensor.stream_id,
               .first_element = tensor.first_element},
              tensor.parameter.numel());
  }
  launch();
}

}  // namespace

void momentum(const Context& context, const MomentumArgs& args) {
  if (context.dry()) return;
  std::vector<Formats> done;
  for (const MomentumTensor& tensor : args.tensors) {
    const Formats formats = formats_of(tensor);
    if (std::find(done.begin(), done.end(), formats) != done.end()) continue;
    done.push_back(formats);
    cuda::dispatch_float(formats.parameter, [&](auto p) {
      cuda::dispatch_float(formats.gradient, [&](auto g) {
        cuda::dispatch_float(formats.m,
                             [&](auto m) { update<decltype(p), decltype(g), decltype(m)>(context, args, formats); });
      });
    });
  }
}

}  // namespace hone::cuda
