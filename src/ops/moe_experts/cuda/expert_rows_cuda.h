// Shared by the CUDA code of moe_experts: the sum of a token's rows, and tensors in the dtype of the activations.
#pragma once

#include "kernels/cuda/grouped_gemm/grouped_gemm.h"
#include "ops/moe_experts/moe_experts.h"

namespace hone::cuda {

inline RowGroups groups_of(const ExpertRows& rows) { return {rows.offsets, rows.token.numel()}; }

/// dst[t] = Σ_j weights[t, j] · y[row[t, j]] + beta · dst[t], j in increasing order, float32 sums; without weights 1.
/// Choices without a row add nothing.
struct CombineArgs {
  ExpertRows rows;
  Tensor y;             ///< [R, n]
  Tensor weights = {};  ///< [T, k] or undefined
  GradDest dst;         ///< [T, n]; y, weights and dst have the same dtype
};
void combine_rows(const Context& context, const CombineArgs& args);

void clear(const Context& context, const Tensor& tensor);

/// dst = src + beta · dst; src is f32, or has the dtype of dst.
void store_gradient(const Context& context, const Tensor& src, const GradDest& dst);

/// The weight itself or, if its dtype differs, a converted copy in scratch: products need equal dtypes.
Tensor in_dtype(const Context& context, ArenaScope& scratch, const Tensor& weight, DType dtype);

}  // namespace hone::cuda
