// gated_rms_norm: RMSNorm of each head of gated DeltaNet's output, times SiLU of a gate. Source: Yang, Kautz and
// Hatamizadeh, "Gated Delta Networks" (arXiv:2412.06464); rounding as in Hugging Face's Qwen3.5.
#pragma once

#include "tape/tape.h"

namespace hone {

/// x and z have rows of D = size of w, several per token. For each row:
///   t = round(w · round(x · r)),  r = rsqrt(mean(x²) + eps)        y = round(t · z · sigmoid(z))
/// where round is to the dtype of x and all else is float32. Deterministic.
struct GatedRmsNormArgs {
  Tensor x;  ///< [T, heads · D] float32 or bfloat16
  Tensor z;  ///< as x
  Tensor w;  ///< [D] of either dtype, D <= kMaxGatedNorm
  Tensor y;  ///< as x
  float eps = 0;
};

inline constexpr int64_t kMaxGatedNorm = 1024;

/// With n = x · r, s = sigmoid(z), dt = dy · z · s and g = dt · w:
///   dx = r · (g − n · mean(g · n)),   dz = dy · t · s · (1 + z · (1 − s)),   dw = Σ dt · round(n)
/// dx, dz in x's dtype, dw float32; each is optional. dw sums rows in chunks of fixed size, in order.
struct GatedRmsNormGradArgs {
  Tensor x, z, w;
  Tensor dy;  ///< as x
  GradDest dx, dz, dw;
  float eps = 0;
};

void gated_rms_norm(const Context& context, const GatedRmsNormArgs& args);
void gated_rms_norm_grad(const Context& context, const GatedRmsNormGradArgs& args);

/// Records y. Backward saves x and z.
Var gated_rms_norm(Tape& tape, Var x, Var z, Weight& w, float eps);

namespace cpu {
void gated_rms_norm(const Context& context, const GatedRmsNormArgs& args);
void gated_rms_norm_grad(const Context& context, const GatedRmsNormGradArgs& args);
}  // namespace cpu

namespace cuda {
void gated_rms_norm(const Context& context, const GatedRmsNormArgs& args);
void gated_rms_norm_grad(const Context& context, const GatedRmsNormGradArgs& args);
}  // namespace cuda

}  // namespace hone
