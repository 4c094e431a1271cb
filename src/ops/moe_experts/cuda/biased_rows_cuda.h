// Biases of experts and activations other than SwiGLU, as passes over rows in addition to the products. CUDA only.
#pragma once

#include "ops/moe_experts/moe_experts.h"

namespace hone::cuda {

/// Whether the kernels that fuse the activation into a product do not apply.
inline bool needs_row_passes(const Tensor& bias, const MlpActivation& function) {
  return bias.defined() || function.kind != MlpActivation::Kind::kSwiglu;
}

/// y[r] += bias[e] for every row r of expert e; y [R, n] and bias [E, n] have the same dtype.
void add_bias_rows(const Context& context, const ExpertRows& rows, const Tensor& bias, const Tensor& y);

/// h[r] += bias[e], rounded, if bias is defined; then activation[r] = f of it.
struct BiasedActivationArgs {
  ExpertRows rows;
  Tensor bias;  ///< [E, C] or undefined; dtype of h
  MlpActivation function;
  Tensor h;           ///< in and out, [R, C], C = function.columns(I)
  Tensor activation;  ///< out, [R, I], dtype of h
};
void activate_biased_rows(const Context& context, const BiasedActivationArgs& args);

/// With s = weights[c] of the row's choice c, for row r of expert e:
///   dweights[c] = <dact[r], act[r]> + <dout[token[r]], bias[e]>     dh[r] = s · dact[r] through f
///   scaled_act[r] = s · act[r]
struct BiasedActivationGradArgs {
  ExpertRows rows;
  Tensor h;        ///< [R, C]
  Tensor weights;  ///< [T, k], dtype of h
  Tensor dout;     ///< [T, H], dtype of h
  Tensor bias;     ///< [E, H] or undefined; dtype of h
  MlpActivation function;
  Tensor dact = {};        ///< [R, I], dtype of h; undefined if neither dh nor dweights is wanted
  Tensor dh = {};          ///< [R, C] or undefined; may be h
  Tensor scaled_act = {};  ///< [R, I] or undefined; may be dact
  Tensor dweights = {};    ///< f32 [T, k] or undefined
};
void biased_activation_grad(const Context& context, const BiasedActivationGradArgs& args);

/// dbias[e] = Σ of s · dy[r] over the rows of e + beta · dbias[e], float32, in a fixed order.
struct BiasRowsGradArgs {
  ExpertRows rows;
  Tensor dy;  ///< [R, n]; with `gathered` [T, n], row r at token[r]
  bool gathered = false;
  Tensor weights = {};  ///< [T, k], s as above; undefined: 1
  GradDest dbias;       ///< f32 [E, n]
};
void bias_rows_grad(const Context& context, const BiasRowsGradArgs& args);

}  // namespace hone::cuda
