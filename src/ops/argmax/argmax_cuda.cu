#include "core/stream/cuda_launch.h"
#include "ops/argmax/argmax.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 1024;

/// The best element so far: the larger value, of equal ones the lower index. Index −1: none above −infinity.
struct Best {
  float value = -INFINITY;
  int index = -1;

  __device__ void take(float other, int other_index) {
    const bool better = other > value || (other == value && other_index >= 0 && other_index < index);
    if (!better) return;
    value = other;
    index = other_index;
  }
};

__device__ Best best_of_warp(Best best) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, best.value, offset);
    const int index = __shfl_xor_sync(0xffffffffu, best.index, offset);
    best.take(value, index);
  }
  return best;
}

/// One CTA per row.
template <class T>
__global__ void __launch_bounds__(kThreads) argmax_kernel(const T* x, int columns, int32_t* ids) {
  __shared__ Best partial[kThreads / 32];
  const T* row = x + int64_t{blockIdx.x} * columns;
  Best best;
  bool finite = true;
#pragma unroll 4
  for (int i = threadIdx.x; i < columns; i += kThreads) {
    const float value = to_float(row[i]);
    finite = finite && value < INFINITY;  // false for NaN
    best.take(value, i);
  }
  finite = __syncthreads_and(finite);
  best = best_of_warp(best);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = best_of_warp(partial[threadIdx.x]);
  if (threadIdx.x == 0) ids[blockIdx.x] = finite ? best.index : -1;
}

}  // namespace

void argmax(const Context& context, const ArgmaxArgs& args) {
  if (context.dry() || args.x.shape[0] == 0) return;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    argmax_kernel<T><<<blocks_for(args.x.shape[0], 1), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.x), static_cast<int>(args.x.shape[1]), elements<int32_t>(args.ids));
    check_launch("choosing tokens");
  });
}

}  // namespace hone::cuda
