// gated_group_norm: RMSNorm of groups of a row that was multiplied by SiLU of a gate, as Mamba-2 has it. Source: Dao
// and Gu, "Transformers are SSMs" (arXiv:2405.21060); rounding as in Hugging Face's classes. The norm of gated
// DeltaNet (ops/gated_rms_norm) comes before its gate.
#pragma once

#include "tape/tape.h"

namespace hone {

/// x and z have rows of `groups` groups of D = size of w / groups elements. For each group of a row:
///   h = x · z · sigmoid(z)        y = round(w · round(h · r)),  r = rsqrt(mean(h²) + eps)
/// where round is to the dtype of x and all else is float32. Deterministic.
struct GatedGroupNormArgs {
  Tensor x;  ///< [T, groups · D] float32 or bfloat16
  Tensor z;  ///< as x
  Tensor w;  ///< [groups · D] of either dtype, D <= kMaxGatedGroup
  Tensor y;  ///< as x
  int64_t groups = 1;
  float eps = 0;
};

inline constexpr int64_t kMaxGatedGroup = 12032;

/// With n = h · r, s = sigmoid(z), g = dy · w and dh = r · (g − n · mean(g · n)):
///   dx = dh · z · s,   dz = dh · x · s · (1 + z · (1 − s)),   dw = Σ dy · round(n)
/// dx, dz in x's dtype, dw float32; each is optional. dw sums rows in chunks of fixed size, in order.
struct GatedGroupNormGradArgs {
  GatedGroupNormArgs forward;  ///< y unused
  Tensor dy;                   ///< as x
  GradDest dx, dz, dw;
};

void gated_group_norm(const Context& context, const GatedGroupNormArgs& args);
void gated_group_norm_grad(const Context& context, const GatedGroupNormGradArgs& args);

/// Records y. Backward saves x and z.
Var gated_group_norm(Tape& tape, Var x, Var z, Weight& w, int64_t groups, float eps);

namespace cpu {
void gated_group_norm(const Context& context, const GatedGroupNormArgs& args);
void gated_group_norm_grad(const Context& context, const GatedGroupNormGradArgs& args);
}  // namespace cpu

namespace cuda {
void gated_group_norm(const Context& context, const GatedGroupNormArgs& args);
void gated_group_norm_grad(const Context& context, const GatedGroupNormGradArgs& args);
}  // namespace cuda

}  // namespace hone
