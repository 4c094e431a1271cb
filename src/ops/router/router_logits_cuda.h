// The router's product with its weight, for forward and backward.
#pragma once

#include "kernels/cuda/matmul/matmul_cuda.h"

namespace hone::cuda {

/// logits f32 [T, E] = x wᵀ + bias. Products of bfloat16 are exact in the float32 accumulator.
inline void router_logits(const Context& context, const Tensor& x, const Tensor& weight, const Tensor& bias,
                          const Tensor& logits) {
  const bool narrow = x.dtype == DType::kBF16 && weight.dtype == DType::kBF16;
  matmul(context, {.a = x,
                   .b = weight,
                   .b_transposed = true,
                   .c = logits,
                   .operands = narrow ? DType::kBF16 : DType::kF32,
                   .bias = bias});
}

}  // namespace hone::cuda
