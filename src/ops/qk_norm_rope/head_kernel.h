// The part of qk_norm_rope that is compiled once per instruction set: all heads of one token.
#pragma once

#include <cstdint>

namespace hone::cpu {

inline constexpr int64_t kMaxHeadDim = 1024;

/// Values shared by the heads of a token.
struct HeadRow {
  int64_t heads, head_dim;
  const float* norm;  ///< [head_dim] or null
  bool rounds_first;  ///< rounds the normalised head before the product with norm
  float eps;
  const float* cos;  ///< [half] for the token's position
  const float* sin;
  int64_t half;    ///< rotated pairs
  int64_t offset;  ///< index of the first rotated element
  bool interleaved;
};

/// T is float, or uint16_t for the bits of bfloat16. Pointers are to [heads, head_dim].
template <class T>
struct HeadKernel {
  void (*forward)(const HeadRow& row, const T* x, T* y);
  /// dx = gradient + beta · dx (dx may be null); dnorm [head_dim] += the weight's gradient (may be null).
  void (*backward)(const HeadRow& row, const T* x, const T* dy, T* dx, float beta, float* dnorm);
};

struct HeadKernels {
  HeadKernel<float> f32;
  HeadKernel<uint16_t> bf16;
};

extern const HeadKernels kHeadKernelsBaseline;
extern const HeadKernels kHeadKernelsAvx2;
extern const HeadKernels kHeadKernelsAvx512;

}  // namespace hone::cpu
