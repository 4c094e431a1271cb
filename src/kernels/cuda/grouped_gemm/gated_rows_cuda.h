// The activation between the two products of an expert, silu(gate) · up, and its gradient, row by row; used after
// products without such an epilogue. CUDA only.
#pragma once

#include "core/base/tensor.h"
#include "core/stream/context.h"

namespace hone::cuda {

/// activation[r] = silu(h[r, :I]) · h[r, I:]; h [R, 2I], activation [R, I] with the same dtype.
void activate_rows(const Context& context, const Tensor& h, const Tensor& activation);

/// The remainder of grouped_dswiglu (grouped_gemm.h) once dact has been computed.
struct GatedGradArgs {
  Tensor offsets;          ///< i64 [E + 1]; rows [0, offsets[E]) are in use
  Tensor assignment;       ///< i32 [R]
  Tensor h;                ///< [R, 2I]
  Tensor weights;          ///< [T, k], dtype of h
  Tensor dact = {};        ///< [R, I] f32 or dtype of h; undefined if dh and dweights are
  Tensor dh = {};          ///< [R, 2I] or undefined; may be h
  Tensor scaled_act = {};  ///< [R, I] or undefined; may be dact
  Tensor dweights = {};    ///< f32 [T, k] or undefined
};
void gated_rows_grad(const Context& context, const GatedGradArgs& args);

}  // namespace hone::cuda
