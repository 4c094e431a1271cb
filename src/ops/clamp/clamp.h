// clamp: limits values to a bound (clip_qkv of OLMoE).
#pragma once

#include "tape/tape.h"

namespace hone {

/// y[i] = min(max(x[i], -limit), limit); NaN stays NaN. x and y have the same dtype, float32 or bfloat16, to which the
/// limit is rounded; y may be x.
struct ClampArgs {
  Tensor x, y;
  float limit = 0;
};

void clamp(const Context& context, const ClampArgs& args);

/// dx[i] = dy[i] where |x[i]| <= limit, else 0 (as torch.clamp).
struct ClampGradArgs {
  Tensor x, dy;
  GradDest dx;
  float limit = 0;
};

void clamp_grad(const Context& context, const ClampGradArgs& args);

/// Records y = clamp(x); limit > 0. Backward saves x.
Var clamp(Tape& tape, Var x, float limit);

namespace cpu {
void clamp(const Context& context, const ClampArgs& args);
void clamp_grad(const Context& context, const ClampGradArgs& args);
}  // namespace cpu

namespace cuda {
void clamp(const Context& context, const ClampArgs& args);
void clamp_grad(const Context& context, const ClampGradArgs& args);
}  // namespace cuda

}  // namespace hone
