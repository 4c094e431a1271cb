// The destination of a gradient, for all kernels of attention's backward. Included by *_cuda.cu only.
#pragma once

#include "core/stream/cuda_launch.h"
#include "tape/weight.h"

namespace hone::cuda {

/// The destination of a gradient.
struct Gradient {
  std::byte* data;  ///< null: not wanted
  bool is_float32;
  float beta;

  explicit Gradient(const GradDest& dest)
      : data(dest.wanted() ? dest.dst.data : nullptr),
        is_float32(dest.wanted() && dest.dst.dtype == DType::kF32),
        beta(dest.beta) {}

#ifdef __CUDACC__
  __device__ void store(int64_t index, float value) const {
    if (is_float32) {
      float* to = reinterpret_cast<float*>(data) + index;
      *to = beta != 0.0f ? *to + value : value;
    } else {
      __nv_bfloat16* to = reinterpret_cast<__nv_bfloat16*>(data) + index;
      *to = __float2bfloat16_rn(beta != 0.0f ? __bfloat162float(*to) + value : value);
    }
  }
  /// Stores two consecutive elements; the index is even.
  __device__ void store_pair(int64_t index, float x, float y) const {
    if (is_float32) {
      float2* to = reinterpret_cast<float2*>(reinterpret_cast<float*>(data) + index);
      const float2 before = beta != 0.0f ? *to : float2{0.0f, 0.0f};
      *to = {before.x + x, before.y + y};
    } else {
      auto* to = reinterpret_cast<__nv_bfloat162*>(reinterpret_cast<__nv_bfloat16*>(data) + index);
      const float2 before = beta != 0.0f ? __bfloat1622float2(*to) : float2{0.0f, 0.0f};
      *to = __floats2bfloat162_rn(before.x + x, before.y + y);
    }
  }
#endif
};

}  // namespace hone::cuda
