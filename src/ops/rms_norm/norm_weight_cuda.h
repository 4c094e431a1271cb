// The weight of a norm in kernels, with a dtype independent of the activations'.
#pragma once

#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/rms_norm/norm_weighting.h"

namespace hone::cuda {

/// The dtype is a uniform branch, so kernels need not be compiled for each pair of dtypes.
struct NormWeight {
  const void* values = nullptr;
  bool bf16 = false;
  bool from_one = false, rounds_first = true;

  NormWeight() = default;
  explicit NormWeight(const Tensor& w, NormWeighting weighting = NormWeighting::kPlain)
      : values(w.data),
        bf16(w.dtype == DType::kBF16),
        from_one(weighting == NormWeighting::kFromOne),
        rounds_first(weighting == NormWeighting::kPlain) {}

#ifdef __CUDACC__
  /// The factor of a row's elements; 1 without values.
  __device__ float at(int64_t i) const {
    if (values == nullptr) return 1.0f;
    const float w =
        bf16 ? to_float(static_cast<const __nv_bfloat16*>(values)[i]) : static_cast<const float*>(values)[i];
    return from_one ? 1.0f + w : w;
  }
  /// The normalised element n, rounded if the weighting requires it.
  template <class T>
  __device__ float factor(float n) const {
    return rounds_first ? rounded<T>(n) : n;
  }
  /// Loads kCount weights from `begin`, a multiple of kCount.
  template <int kCount>
  __device__ void load(int64_t begin, float (&w)[kCount]) const {
    if (values == nullptr) {
#pragma unroll
      for (float& value : w) value = 1.0f;
      return;
    }
    if (bf16) {
      load_floats(static_cast<const __nv_bfloat16*>(values) + begin, w);
    } else {
      load_floats(static_cast<const float*>(values) + begin, w);
    }
    if (!from_one) return;
#pragma unroll
    for (float& value : w) value += 1.0f;
  }
#endif
};

}  // namespace hone::cuda
