// expert_scale: multiplies the weights of a token's experts by a trained factor for each expert. Source: Gemma 4
// (Gemma4TextRouter of transformers 5).
#pragma once

#include "tape/tape.h"

namespace hone {

/// y[t, j] = weights[t, j] · scale[ids[t, j]], rounded to the dtype of y. weights and y [T, k] have the same dtype,
/// float32 or bfloat16; ids i32 [T, k], each in [0, E); scale [E] has either dtype. Ids outside [0, E) are an assertion
/// on a CPU; on a GPU their y is NaN. Deterministic.
struct ExpertScaleArgs {
  Tensor weights, ids, scale, y;
};

void expert_scale(const Context& context, const ExpertScaleArgs& args);

/// dweights[t, j] = dy[t, j] · scale[ids[t, j]] in the dtype of dy;
/// dscale[e] = Σ over t, j with ids[t, j] = e of dy[t, j] · weights[t, j], float32, in a fixed order. Either is
/// optional.
struct ExpertScaleGradArgs {
  Tensor weights, ids, scale, dy;
  GradDest dweights, dscale;
};

void expert_scale_grad(const Context& context, const ExpertScaleGradArgs& args);

/// Records y = expert_scale(weights). Backward saves weights and ids.
Var expert_scale(Tape& tape, Var weights, Var ids, Weight& scale);

namespace cpu {
void expert_scale(const Context& context, const ExpertScaleArgs& args);
void expert_scale_grad(const Context& context, const ExpertScaleGradArgs& args);
}  // namespace cpu

namespace cuda {
void expert_scale(const Context& context, const ExpertScaleArgs& args);
void expert_scale_grad(const Context& context, const ExpertScaleGradArgs& args);
}  // namespace cuda

}  // namespace hone
