#include "ops/adamw/adamw.h"
#include "ops/adamw/stochastic_rounding.h"
#include "ops/row_math/tensor_table_cuda.h"
#include "ops/row_math/vectors_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWidth = 4, kUnroll = 2;
constexpr int64_t kChunk = int64_t{kThreads} * kWidth * kUnroll * 4;

/// Moments are of type M: float, or __nv_bfloat16 with stochastic rounding.
template <class M>
struct Entry {
  float* parameter;
  __nv_bfloat16* working_copy;  // or null
  M* m;
  M* v;
  const float* gradient;
  int64_t elements;
  float weight_decay;
  uint32_t stream_id;
};

template <class M>
using Table = TensorTable<Entry<M>, 64, kChunk>;

struct Constants {
  double beta1, beta2, eps;
  bool vectors;
};

/// What all elements of a tensor share: computed in float64 and rounded once, as torch does.
struct Step {
  uint64_t key;  // of the random numbers
  float gradient_scale, decay, one_minus_beta1, beta2, one_minus_beta2, sqrt_bias_correction2, eps, step_size;

  __device__ void update(float& p, float& m, float& v, float gradient) const {
    const float g = gradient * gradient_scale;
    m += (g - m) * one_minus_beta1;
    v = v * beta2 + one_minus_beta2 * g * g;
    p = p * decay - step_size * m / (sqrtf(v) / sqrt_bias_correction2 + eps);
  }
};

__device__ Step step_of(const StepScalars& scalars, const Constants& constants, double weight_decay) {
  const double lr = static_cast<double>(scalars.learning_rate);
  return {.gradient_scale = scalars.clip_coefficient,
          .decay = static_cast<float>(1.0 - lr * weight_decay),
          .one_minus_beta1 = static_cast<float>(1.0 - constants.beta1),
          .beta2 = static_cast<float>(constants.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - constants.beta2),
          .sqrt_bias_correction2 = static_cast<float>(sqrt(static_cast<double>(scalars.bias_correction2))),
          .eps = static_cast<float>(constants.eps),
          .step_size = static_cast<float>(lr / static_cast<double>(scalars.bias_correction1))};
}

/// Four neighbouring elements of a moment; `half` says which 16 bits of the random words are its own.
__device__ void store_moment(float* to, const float (&values)[kWidth], const std::array<uint32_t, kWidth>&, int) {
  store_floats(to, values);
}
__device__ void store_moment(__nv_bfloat16* to, const float (&values)[kWidth],
                             const std::array<uint32_t, kWidth>& words, int half) {
  Vector<__nv_bfloat16, kWidth> rounded;
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    rounded.words[i / 2] = stochastic_bf16(values[i], words[i] >> 16 * half) |
                           uint32_t{stochastic_bf16(values[i + 1], words[i + 1] >> 16 * half)} << 16;
  }
  store_vector(to, rounded);
}

__device__ void store_moment(float& to, float value, uint32_t) { to = value; }
__device__ void store_moment(__nv_bfloat16& to, float value, uint32_t word) {
  to = __ushort_as_bfloat16(stochastic_bf16(value, word));
}

template <class M>
__device__ void update_one(const Step& step, const Entry<M>& entry, int64_t i) {
  float p = entry.parameter[i], m = to_float(entry.m[i]), v = to_float(entry.v[i]);
  step.update(p, m, v, entry.gradient[i]);
  uint32_t word = 0;
  if constexpr (sizeof(M) == 2) word = moment_words(step.key, i - i % kWidth)[static_cast<size_t>(i % kWidth)];
  entry.parameter[i] = p;
  store_moment(entry.m[i], m, word);
  store_moment(entry.v[i], v, word >> 16);
  if (entry.working_copy != nullptr) entry.working_copy[i] = from_float<__nv_bfloat16>(p);
}

template <class M>
__device__ bool is_aligned(const Entry<M>& entry) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  return ((address(entry.parameter) | address(entry.m) | address(entry.v) | address(entry.gradient)) % 16 |
          address(entry.working_copy) % 8) == 0;
}

/// A block updates a chunk of a tensor.
template <class M>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ Table<M> table, const Constants constants, const StepScalars* scalars) {
  if (scalars->nonfinite != 0) return;
  const int index = table.find(blockIdx.x);
  const Entry<M>& entry = table.entries[index];
  __shared__ Step shared;
  if (threadIdx.x == 0) {
    shared = step_of(*scalars, constants, static_cast<double>(entry.weight_decay));
    shared.key = sizeof(M) == 2 ? mix_key(scalars->seed, entry.stream_id) : 0;
  }
  __syncthreads();
  const Step step = shared;
  const int64_t begin = table.begin(index, blockIdx.x), end = min(entry.elements, begin + kChunk);
  if (!constants.vectors || !is_aligned(entry)) {
    for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) update_one(step, entry, i);
    return;
  }
  const int64_t vectors_end = end - end % kWidth;
  for (int64_t first = begin + threadIdx.x * kWidth; first < vectors_end; first += kThreads * kWidth * kUnroll) {
    float p[kUnroll][kWidth], m[kUnroll][kWidth], v[kUnroll][kWidth], g[kUnroll][kWidth];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + u * kThreads * kWidth;
      if (i >= vectors_end) continue;
      load_floats(entry.parameter + i, p[u]);
      load_floats(entry.m + i, m[u]);
      load_floats(entry.v + i, v[u]);
      load_floats(entry.gradient + i, g[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + u * kThreads * kWidth;
      if (i >= vectors_end) continue;
#pragma unroll
      for (int c = 0; c < kWidth; ++c) step.update(p[u][c], m[u][c], v[u][c], g[u][c]);
      std::array<uint32_t, kWidth> words{};
      if constexpr (sizeof(M) == 2) words = moment_words(step.key, i);
      store_floats(entry.parameter + i, p[u]);
      store_moment(entry.m + i, m[u], words, 0);
      store_moment(entry.v + i, v[u], words, 1);
      if (entry.working_copy != nullptr) store_floats(entry.working_copy + i, p[u]);
    }
  }
  if (vectors_end + threadIdx.x < end) update_one(step, entry, vectors_end + threadIdx.x);
}

template <class M>
void update(const Context& context, const AdamwArgs& args) {
  const Constants constants{
      .beta1 = args.beta1, .beta2 = args.beta2, .eps = args.eps, .vectors = !context.stream().general_kernels()};
  Table<M> table;
  const auto launch = [&] {
    if (table.chunks == 0) return;
    adamw_kernel<M><<<table.chunks, kThreads, 0, stream_of(context)>>>(table, constants, args.scalars);
    check_launch("updating parameters");
    table = {};
  };
  for (const AdamwTensor& tensor : args.tensors) {
    if (table.full()) launch();
    table.add({.parameter = elements<float>(tensor.parameter),
               .working_copy = elements<__nv_bfloat16>(tensor.working_copy),
               .m = elements<M>(tensor.m),
               .v = elements<M>(tensor.v),
               .gradient = elements<float>(tensor.gradient),
               .elements = tensor.parameter.numel(),
               .weight_decay = static_cast<float>(tensor.weight_decay),
               .stream_id = tensor.stream_id},
              tensor.parameter.numel());
  }
  launch();
}

}  // namespace

void adamw(const Context& context, const AdamwArgs& args) {
  if (context.dry() || args.tensors.empty()) return;
  cuda::dispatch_float(args.tensors.front().m.dtype, [&](auto element) { update<decltype(element)>(context, args); });
}

}  // namespace hone::cuda
