// rms_norm: root mean square layer normalisation, optionally fused with the preceding residual sum. Source: Zhang and
// Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467); rounding as in Hugging Face's Llama, Qwen3 and
// Mixtral, or Qwen3-Next, Qwen3.5 and Gemma 4 (norm_weighting.h).
#pragma once

#include "ops/rms_norm/norm_weighting.h"
#include "tape/tape.h"

namespace hone {

/// y[t, :] = w · round(x[t, :] · rsqrt(mean(x[t, :]²) + eps)), rounded again; statistics in float32. x and y [T, H]
/// have the same dtype, float32 or bfloat16, to which round rounds; w [H] has either dtype. With delta (shape and dtype
/// of x), x + round(delta_scale · delta) is rounded, written to sum and normalised in place of x. With
/// NormWeighting::kFromOne y = round((1 + w) · x · r), with kOnce round(w · x · r). Without w its elements count as 1.
/// Deterministic.
struct RmsNormArgs {
  Tensor x;
  Tensor delta = {};  ///< may be undefined
  Tensor sum = {};    ///< defined if delta is
  float delta_scale = 1.0f;
  Tensor w;  ///< may be undefined
  Tensor y;
  float eps = 0;
  NormWeighting weighting = NormWeighting::kPlain;
};

void rms_norm(const Context& context, const RmsNormArgs& args);

/// With n = x · r, r = rsqrt(mean(x²) + eps) and g = dy · w (kFromOne: dy · (1 + w)), for each row:
///   dx = r · (g - n · mean(g · n)),   dw = Σ_t dy · round(n)  (kFromOne, kOnce: dy · n)
/// dx in x's dtype, dw float32 [H]; either is optional. dw sums rows in chunks of fixed size: deterministic, and
/// independent of the number of threads.
struct RmsNormGradArgs {
  Tensor x;  ///< the input of the norm (sum, if there was a delta)
  Tensor w;
  Tensor dy;
  GradDest dx, dw;
  float eps = 0;
  NormWeighting weighting = NormWeighting::kPlain;
};

void rms_norm_grad(const Context& context, const RmsNormGradArgs& args);

/// Records y = rms_norm(x). Backward saves x and recomputes the statistics.
Var rms_norm(Tape& tape, Var x, Weight& w, float eps, NormWeighting weighting = NormWeighting::kPlain);
/// Records y = x [T, n · width] with each run of `width` elements normalised by itself, without a weight.
Var rms_norm(Tape& tape, Var x, int64_t width, float eps);

struct SumAndNorm {
  Var sum;
  Var y;
};

/// Records sum = x + scale · delta and y = rms_norm(sum) in one pass over memory. For recomputation these are two
/// nodes, "add" and "rms_norm", so that y can be recomputed from a kept sum. Backward: the gradient of sum (its own
/// plus the norm's) is added to x and, times scale, to delta.
SumAndNorm add_rms_norm(Tape& tape, Var x, Var delta, Weight& w, float eps,
                        NormWeighting weighting = NormWeighting::kPlain, float scale = 1.0f);

namespace cpu {
void rms_norm(const Context& context, const RmsNormArgs& args);
void rms_norm_grad(const Context& context, const RmsNormGradArgs& args);
}  // namespace cpu

namespace cuda {
void rms_norm(const Context& context, const RmsNormArgs& args);
void rms_norm_grad(const Context& context, const RmsNormGradArgs& args);
}  // namespace cuda

}  // namespace hone
