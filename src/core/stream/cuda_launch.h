// Helpers for CUDA ops that launch kernels: the stream and device of a context, and the element types. Only for
// *_cuda.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "core/cuda/cuda_check.h"
#include "core/cuda/cuda_queue.h"
#include "core/stream/context.h"

namespace hone::cuda {

inline CudaQueue& queue_of(const Context& context) { return context.stream().cuda(); }
inline cudaStream_t stream_of(const Context& context) { return static_cast<cudaStream_t>(queue_of(context).stream()); }

/// The elements of a tensor as kernels use them; BFloat16 and __nv_bfloat16 have the same 16 bits.
template <class T>
T* elements(const Tensor& tensor) {
  HONE_ASSERT(!tensor.defined() || size_of(tensor.dtype) == sizeof(T));
  return reinterpret_cast<T*>(tensor.data);
}

/// Calls f with a value of the element type: float or __nv_bfloat16.
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  HONE_ASSERT(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kBF16 ? f(__nv_bfloat16{}) : f(float{});
}

/// Sets a kernel's maximum dynamic shared memory.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "reserving shared memory");
}

inline unsigned blocks_for(int64_t count, int64_t per_block) {
  const int64_t blocks = (count + per_block - 1) / per_block;
  HONE_ASSERT(blocks <= INT32_MAX);
  return static_cast<unsigned>(blocks);
}

#ifdef __CUDACC__

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ inline T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

/// 16 bytes of elements: 4 floats or 8 bf16 in one load or store.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

template <class T>
__device__ inline Pack<T> load_pack(const T* address) {
  return *reinterpret_cast<const Pack<T>*>(address);
}
template <class T>
__device__ inline void store_pack(T* address, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(address) = pack;
}

/// The sum over the 32 lanes, in every lane; the order of additions is fixed.
template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

/// The sum over a block of kThreads threads (a multiple of 32), in every thread, in a fixed order. `partial` is shared
/// memory for kThreads / 32 values; it may be reused after the next barrier.
template <int kThreads, class T>
__device__ inline T block_sum(T value, T* partial) {
  value = warp_sum(value);
  if constexpr (kThreads > 32) {
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = T{};
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) value += partial[warp];
  }
  return value;
}

#endif  // __CUDACC__

}  // namespace hone::cuda
