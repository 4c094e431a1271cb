#include "ops/moe_experts/expert_rows_cuda.h"

#include "core/cuda_launch.h"
#include "ops/cast/cast.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
struct Combine {
  const T* y;
  const T* weights;
  const int32_t* row;
  T* dst;
  int64_t k, n;
  bool adds;
};

/// kWidth columns of a token for each thread. Eight rows are on their way at once: the top 8 of common models in one
/// go.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) combine_kernel(Combine<T> c, int64_t groups_in_row, int64_t groups) {
  struct alignas(sizeof(T) * kWidth) Vector {
    T values[kWidth];
  };
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= groups) return;
  const int64_t token = at / groups_in_row, column = at % groups_in_row * kWidth;
  const int32_t* rows = c.row + token * c.k;
  float sums[kWidth] = {};
  constexpr int kInFlight = 8;
  for (int64_t first = 0; first < c.k; first += kInFlight) {
    Vector values[kInFlight];
    float weights[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (first + j >= c.k) break;
      values[j] = *reinterpret_cast<const Vector*>(c.y + rows[first + j] * c.n + column);
      weights[j] = c.weights != nullptr ? to_float(c.weights[token * c.k + first + j]) : 1.0f;
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (first + j >= c.k) break;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] += weights[j] * to_float(values[j].values[i]);
    }
  }
  Vector& dst = *reinterpret_cast<Vector*>(c.dst + token * c.n + column);
  if (c.adds) {
    const Vector before = dst;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] += to_float(before.values[i]);
  }
  Vector result;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) result.values[i] = from_float<T>(sums[i]);
  dst = result;
}

template <class S, class D>
__global__ void __launch_bounds__(kThreads) store_gradient_kernel(const S* src, D* dst, bool adds, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float before = adds ? to_float(dst[i]) : 0.0f;
  dst[i] = from_float<D>(to_float(src[i]) + before);
}

}  // namespace

void combine_rows(const Context& context, const CombineArgs& args) {
  const int64_t n = args.y.shape[1], numel = args.dst.dst.numel();
  if (context.dry() || numel == 0) return;
  cuda::dispatch_float(args.y.dtype, [&](auto element) {
    using T = decltype(element);
    const Combine<T> combine{elements<T>(args.y),       elements<T>(args.weights), args.rows.row.as<int32_t>(),
                             elements<T>(args.dst.dst), args.rows.row.shape[1],    n,
                             args.dst.beta != 0.0f};
    constexpr int kWidth = Pack<T>::kSize;
    if (n % kWidth == 0) {
      combine_kernel<T, kWidth><<<blocks_for(numel / kWidth, kThreads), kThreads, 0, stream_of(context)>>>(
          combine, n / kWidth, numel / kWidth);
    } else {
      combine_kernel<T, 1><<<blocks_for(numel, kThreads), kThreads, 0, stream_of(context)>>>(combine, n, numel);
    }
  });
  check_launch("adding the rows of tokens");
}

void store_gradient(const Context& context, const Tensor& src, const GradDest& dst) {
  const int64_t count = src.numel();
  if (context.dry() || count == 0) return;
  cuda::dispatch_float(src.dtype, [&](auto from) {
    cuda::dispatch_float(dst.dst.dtype, [&](auto to) {
      using S = decltype(from);
      using D = decltype(to);
      store_gradient_kernel<S, D><<<blocks_for(count, kThreads), kThreads, 0, stream_of(context)>>>(
          elements<S>(src), elements<D>(dst.dst), dst.beta != 0.0f, count);
    });
  });
  check_launch("storing a gradient");
}

Tensor in_dtype(const Context& context, ArenaScope& scratch, const Tensor& weight, DType dtype) {
  if (weight.dtype == dtype) return weight;
  const Tensor converted = scratch.take(weight.shape, dtype);
  hone::cast(context, CastArgs{weight, converted});
  return converted;
}

}  // namespace hone::cuda
