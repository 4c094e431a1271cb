// Checks which tensors the Hopper kernels of grouped products support.
#pragma once

// For targets other than sm_90a the kernels are empty and their helpers unused.
#pragma nv_diag_suppress 177

#include <cstdint>

#include "core/tensor.h"
#include "kernels/cuda/tiers.h"

namespace hone::cuda::sm90 {

/// Whether a tensor is undefined, or bfloat16 with rows suitable for TMA and 16-byte accesses.
inline bool takes_rows(const Tensor& tensor) {
  return !tensor.defined() || (tensor.dtype == DType::kBF16 && tensor.shape[-1] > 0 && tensor.shape[-1] % 8 == 0 &&
                               reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0);
}

}  // namespace hone::cuda::sm90
