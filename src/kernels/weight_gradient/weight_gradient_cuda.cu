#include "kernels/cuda/rows/vectors_cuda.h"
#include "kernels/stochastic_rounding.h"
#include "kernels/weight_gradient/weight_gradient.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256, kWidth = 4, kUnroll = 4;

/// values = values + before, rounded.
__device__ void add_rounded(const float (&before)[kWidth], uint64_t key, int64_t first, float (&values)[kWidth]) {
  const auto words = rounding_words(key, first, RoundingUse::kGradient, salt_of(values));
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    values[i] = __uint_as_float(uint32_t{stochastic_bf16(before[i] + values[i], words[static_cast<size_t>(i)])} << 16);
  }
}

/// A thread processes kWidth consecutive elements, kUnroll times. `scalars` is null if nothing is added to.
__global__ void __launch_bounds__(kThreads) store_kernel(const float* src, __nv_bfloat16* dst, int64_t count,
                                                         const StepScalars* scalars, uint64_t stream_id, bool vectors) {
  const uint64_t key = scalars != nullptr ? mix_key(scalars->seed, stream_id) : 0;
  const int64_t begin = int64_t{blockIdx.x} * kThreads * kWidth * kUnroll + threadIdx.x * kWidth;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t first = begin + u * kThreads * kWidth;
    if (first >= count) return;
    const bool whole = vectors && first + kWidth <= count;
    float values[kWidth] = {}, before[kWidth] = {};
    for (int i = 0; !whole && i < kWidth && first + i < count; ++i) {
      values[i] = src[first + i];
      if (scalars != nullptr) before[i] = to_float(dst[first + i]);
    }
    if (whole) load_floats(src + first, values);
    if (whole && scalars != nullptr) load_floats(dst + first, before);
    if (scalars != nullptr) add_rounded(before, key, first, values);
    if (whole) store_floats(dst + first, values);
    for (int i = 0; !whole && i < kWidth && first + i < count; ++i) {
      dst[first + i] = from_float<__nv_bfloat16>(values[i]);
    }
  }
}

}  // namespace

void store_gradient(const Context& context, const StoreGradientArgs& args) {
  const int64_t count = args.src.numel();
  if (context.dry() || count == 0) return;
  const bool vectors = !context.stream().general_kernels() && allows_vectors(args.src, 0, kWidth) &&
                       allows_vectors(args.dst.dst, 0, kWidth);
  store_kernel<<<blocks_for(count, kThreads * kWidth * kUnroll), kThreads, 0, stream_of(context)>>>(
      elements<float>(args.src), elements<__nv_bfloat16>(args.dst.dst), count,
      args.dst.beta != 0.0f ? args.rounding.scalars : nullptr, args.rounding.stream_id, vectors);
  check_launch("storing a gradient");
}

}  // namespace hone::cuda
