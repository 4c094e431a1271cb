// Building blocks of memory-bound kernels: vectors of elements that a thread loads or stores in 16-byte accesses, their
// values as float32, and sums over adjacent lanes. Included by *_cuda.cu only.
#pragma once

#include <type_traits>

#include "core/stream/cuda_launch.h"

namespace hone::cuda {

/// Whether a tensor's rows can be accessed in vectors of `elements` elements: the tensor is aligned to 16 bytes, and
/// rows consist of whole vectors. True for undefined tensors.
inline bool allows_vectors(const Tensor& tensor, int64_t row_elements, int64_t elements) {
  return !tensor.defined() || (reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && row_elements % elements == 0);
}

#ifdef __CUDACC__

/// kCount elements without conversion. Stored as words, since separate 16-bit elements would take a register each.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Vector {
  using Word = std::conditional_t<kCount * sizeof(T) % 4 == 0, uint32_t, uint16_t>;
  Word words[kCount * sizeof(T) / sizeof(Word)];
};

template <int kCount, class T>
__device__ inline Vector<T, kCount> load_vector(const T* address) {
  return *reinterpret_cast<const Vector<T, kCount>*>(address);
}

template <class T, int kCount>
__device__ inline void store_vector(T* address, const Vector<T, kCount>& vector) {
  // One access of a built-in type: a structure is stored member by member, 4 bytes each, which costs instructions and,
  // in host memory, a transfer each.
  constexpr size_t kBytes = kCount * sizeof(T);
  if constexpr (kBytes % 16 == 0) {
#pragma unroll
    for (size_t i = 0; i < kBytes / 16; ++i) {
      reinterpret_cast<uint4*>(address)[i] = {vector.words[4 * i], vector.words[4 * i + 1], vector.words[4 * i + 2],
                                              vector.words[4 * i + 3]};
    }
  } else if constexpr (kBytes == 8) {
    *reinterpret_cast<uint2*>(address) = {vector.words[0], vector.words[1]};
  } else {
    *reinterpret_cast<Vector<T, kCount>*>(address) = vector;
  }
}

/// Element i, a compile-time constant.
template <class T, int kCount>
__device__ inline float element(const Vector<T, kCount>& vector, int i) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(vector.words[i]);
  } else if constexpr (kCount == 1) {
    return __uint_as_float(uint32_t{vector.words[i]} << 16);
  } else {
    const uint32_t word = vector.words[i / 2];
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
}

template <class T, int kCount>
__device__ inline void widen(const Vector<T, kCount>& vector, float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = element(vector, i);
}

/// Rounds to T; kCount is even.
template <class T, int kCount>
__device__ inline Vector<T, kCount> narrow(const float (&values)[kCount]) {
  Vector<T, kCount> vector;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) vector.words[i] = __float_as_uint(values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], values[i + 1]);
      vector.words[i / 2] = reinterpret_cast<const uint32_t&>(pair);
    }
  }
  return vector;
}

template <int kCount, class T>
__device__ inline void load_floats(const T* address, float (&values)[kCount]) {
  widen(load_vector<kCount>(address), values);
}

template <int kCount, class T>
__device__ inline void store_floats(T* address, const float (&values)[kCount]) {
  store_vector(address, narrow<T>(values));
}

template <class T>
__device__ inline float rounded(float value) {
  return to_float(from_float<T>(value));
}

/// round(scale · value): never fused into a multiply-add, so that all kernels get the same bits.
template <class T>
__device__ inline float scaled(float scale, float value) {
  return rounded<T>(__fmul_rn(scale, value));
}

/// The sum over groups of kLanes adjacent lanes (a power of two), in every lane of a group; fixed order.
template <int kLanes>
__device__ inline float lanes_sum(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

#endif  // __CUDACC__

}  // namespace hone::cuda
