// The weight of a norm as its kernels read it: of either dtype, whatever the activations are.
#pragma once

#include "ops/row_math/vectors_cuda.h"

namespace hone::cuda {

/// The dtype is a branch that all threads take alike: kernels need not be compiled for each pair of dtypes.
struct NormWeight {
  const void* values = nullptr;
  bool bf16 = false;

  NormWeight() = default;
  explicit NormWeight(const Tensor& w) : values(w.data), bf16(w.dtype == DType::kBF16) {}

#ifdef __CUDACC__
  __device__ float at(int64_t i) const {
    return bf16 ? to_float(static_cast<const __nv_bfloat16*>(values)[i]) : static_cast<const float*>(values)[i];
  }
  /// kCount weights from `begin`, a multiple of kCount.
  template <int kCount>
  __device__ void load(int64_t begin, float (&w)[kCount]) const {
    if (bf16) {
      load_floats(static_cast<const __nv_bfloat16*>(values) + begin, w);
    } else {
      load_floats(static_cast<const float*>(values) + begin, w);
    }
  }
#endif
};

}  // namespace hone::cuda
