// DoRA: a low-rank adapter whose sum with the weight is rescaled, row by row, to a trained magnitude:
//   y = m ∘ (x Wᵀ + scaling · (dropout(x) Aᵀ) Bᵀ) / n + b,   n[o] = ‖W[o] + scaling · B[o] A‖₂
// n counts as a constant in backward. Source: Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation"
// (arXiv:2402.09353), equation 5 and section 4.3. PEFT also drops inputs of the rescaled base product, which costs that
// product twice and has the same mean; here dropout acts on the adapter's branch only.
//
// In bfloat16 the sum is rounded once (ops/linear), and y again where the sum is rescaled.
#pragma once

#include "ops/linear/linear.h"

namespace hone {

/// norms[o] = sqrt(Σ_i (w[o, i] + scaling · Σ_ρ lora_b[o, ρ] · lora_a[ρ, i])²)
///   w [out, in], dense, or on a CPU in any format; lora_a [r, in] and lora_b [out, r], each float32 or bfloat16; norms
///   [out] float32.
/// In float32. Deterministic.
struct DoraNormArgs {
  WeightView w;
  Shape shape;  ///< the shape of w
  Tensor lora_a, lora_b;
  float scaling = 0;
  Tensor norms;
};

void dora_norm(const Context& context, const DoraNormArgs& args);

/// y[t, o] = x[t, o] · magnitude[o] / norms[o] + bias[o]; here and below 1 / 0 is 0, of a row that is all zeros.
///   x and y [T, out] of one dtype, float32 or bfloat16; norms [out] float32; magnitude [out] and bias [out] (or
///   undefined), each float32 or bfloat16. Rounded once.
struct DoraScaleArgs {
  Tensor x, norms, magnitude;
  Tensor bias = {};
  Tensor y;
};

void dora_scale(const Context& context, const DoraScaleArgs& args);

/// dx = dy · magnitude / norms,  dmagnitude[o] = Σ_t dy[t, o] · x[t, o] / norms[o],  dbias[o] = Σ_t dy[t, o].
/// Each may be unwanted. dx in x's dtype, the others float32. Sums over T run in one fixed order.
struct DoraScaleGradArgs {
  Tensor dy, norms, magnitude;
  Tensor x = {};  ///< for dmagnitude
  GradDest dx, dmagnitude, dbias;
};

void dora_scale_grad(const Context& context, const DoraScaleGradArgs& args);

/// Records linear (ops/linear) with an adapter that has a magnitude: nodes "lora_down", "linear", "dora_norm" and
/// "dora_scale". Saved in addition to linear's: the norms, and the scaled sum if the magnitude is trained. The targets
/// of `bias`, `adapter` and `rows` must outlive the tape.
Var dora_linear(Tape& tape, Var x, Weight& w, Weight* bias, const Adapter& adapter, const LoraDropoutContext& rows);

namespace cpu {
void dora_norm(const Context& context, const DoraNormArgs& args);
void dora_scale(const Context& context, const DoraScaleArgs& args);
void dora_scale_grad(const Context& context, const DoraScaleGradArgs& args);
}  // namespace cpu

namespace cuda {
void dora_norm(const Context& context, const DoraNormArgs& args);
void dora_scale(const Context& context, const DoraScaleArgs& args);
void dora_scale_grad(const Context& context, const DoraScaleGradArgs& args);
}  // namespace cuda

}  // namespace hone
