// Consecutive elements that a thread of an optimizer's kernel loads as float32 and stores rounded, stochastically if
// they are bfloat16. Included by *_cuda.cu only.
#pragma once

#include "kernels/cuda/rows/vectors_cuda.h"
#include "kernels/stochastic_rounding.h"

#ifdef __CUDACC__

namespace hone::cuda {

/// Elements of a place, which share random words.
inline constexpr int kPlaceWidth = 4;

/// Four consecutive elements; `count` of them are inside the tensor, and `vector` if all are and one access is
/// possible.
struct Place {
  int64_t first;
  int count;
  bool vector;
};

/// Whether places of a tensor with this address allow a single access; true for null.
template <class T>
__device__ inline bool starts_aligned(const T* tensor) {
  return reinterpret_cast<uintptr_t>(tensor) % (kPlaceWidth * sizeof(T)) == 0;
}

template <class T>
__device__ inline void load(const T* from, Place at, float (&values)[kPlaceWidth]) {
  if (at.vector) return load_floats(from + at.first, values);
#pragma unroll
  for (int i = 0; i < kPlaceWidth; ++i) values[i] = i < at.count ? to_float(from[at.first + i]) : 0.0f;
}

template <class T>
__device__ inline void store(T* to, Place at, const float (&values)[kPlaceWidth]) {
  if (at.vector) return store_floats(to + at.first, values);
#pragma unroll
  for (int i = 0; i < kPlaceWidth; ++i) {
    if (i < at.count) to[at.first + i] = from_float<T>(values[i]);
  }
}

/// Rounds stochastically unless T is float; `shift` selects a half of the random words.
__device__ inline void store_rounded(float* to, Place at, const float (&values)[kPlaceWidth],
                                     const std::array<uint32_t, kPlaceWidth>&, int) {
  store(to, at, values);
}
__device__ inline void store_rounded(__nv_bfloat16* to, Place at, const float (&values)[kPlaceWidth],
                                     const std::array<uint32_t, kPlaceWidth>& words, int shift) {
  float rounded[kPlaceWidth];
#pragma unroll
  for (int i = 0; i < kPlaceWidth; ++i) {
    rounded[i] = __uint_as_float(uint32_t{stochastic_bf16(values[i], words[i] >> shift)} << 16);
  }
  store(to, at, rounded);
}

}  // namespace hone::cuda

#endif  // __CUDACC__
