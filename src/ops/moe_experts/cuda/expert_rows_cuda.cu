// The weighted sum of a token's expert rows. Memory-bound: all rows of a token are loaded before the first is added, so
// that their latencies overlap.
#include "ops/moe_experts/cuda/expert_rows_cuda.h"

#include <algorithm>

#include "core/stream/cuda_launch.h"

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

/// A load that the compiler cannot move: it would move an ordinary one to the use of its value, after branches.
template <class T, class Vector>
__device__ inline void load_here(const T* from, Vector& to) {
  if constexpr (sizeof(Vector) == 16) {
    auto& words = reinterpret_cast<uint4&>(to);
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from));
  } else {
    to = *reinterpret_cast<const Vector*>(from);
  }
}

/// One CTA per token, kWidth columns per thread.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, 4) combine_kernel(Combine<T> c) {
  struct alignas(sizeof(T) * kWidth) Vector {
    T values[kWidth];
  };
  const int64_t token = blockIdx.x;
  const int32_t* rows = c.row + token * c.k;
  constexpr int kInFlight = 8;
  for (int64_t column = threadIdx.x * kWidth; column < c.n; column += blockDim.x * kWidth) {
    float sums[kWidth] = {};
    for (int64_t first = 0; first < c.k; first += kInFlight) {
      // All loads are issued together; the last row is repeated if there are fewer, and row 0 stands in for none.
      int32_t from[kInFlight];
      Vector values[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) from[j] = rows[first + j < c.k ? first + j : c.k - 1];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) load_here(c.y + max(from[j], 0) * c.n + column, values[j]);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (first + j >= c.k) break;
        if (from[j] < 0) continue;
        const float weight = c.weights != nullptr ? to_float(c.weights[token * c.k + first + j]) : 1.0f;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sums[i] += weight * to_float(values[j].values[i]);
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
  const int64_t tokens = args.dst.dst.shape[0], n = args.y.shape[1];
  if (context.dry() || args.dst.dst.numel() == 0) return;
  cuda::dispatch_float(args.y.dtype, [&](auto element) {
    using T = decltype(element);
    const Combine<T> combine{elements<T>(args.y),       elements<T>(args.weights), args.rows.row.as<int32_t>(),
                             elements<T>(args.dst.dst), args.rows.row.shape[1],    n,
                             args.dst.beta != 0.0f};
    constexpr int kWidth = Pack<T>::kSize;
    const bool wide = n % kWidth == 0;
    const int64_t groups = wide ? n / kWidth : n;
    const auto threads = static_cast<unsigned>(std::min<int64_t>(kThreads, (groups + 31) / 32 * 32));
    auto* kernel = wide ? combine_kernel<T, kWidth> : combine_kernel<T, 1>;
    kernel<<<blocks_for(tokens, 1), threads, 0, stream_of(context)>>>(combine);
  });
  check_launch("adding the rows of tokens");
}

void clear(const Context& context, const Tensor& tensor) {
  if (context.dry() || tensor.numel() == 0) return;
  check(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), stream_of(context)), "clearing memory of experts");
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

}  // namespace hone::cuda
