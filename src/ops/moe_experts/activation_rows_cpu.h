// The activation between the two products of an expert, and its gradient together with the router weights'.
#pragma once

#include "ops/moe_experts/expert_rows_cpu.h"

namespace hone::cpu {

/// act[r] = f(gate, up), from h [R, 2I]; act [R, I] of the same dtype.
void activate_rows(ThreadPool& pool, const ExpertActivation& function, const Tensor& h, const Tensor& act);

/// With w = the router weight of row r's choice and dact f32 [R, I] = d out / d act without w:
///   d weights[choice] = <dact[r], act[r]> + <dout[token], bias_e>       dh[r] = w · dact[r] through f
///   weighted_act[r] = w · act[r]                what products with dout need to give gradients of weights
/// Each only where wanted (weighted_act: where defined); dact may be undefined if neither gradient is wanted.
struct ActivationGradArgs {
  ExpertRows rows;
  Tensor h;        ///< [R, 2I]
  Tensor weights;  ///< [T, k]
  Tensor dout;     ///< [T, H], read where there is a bias
  Tensor bias;     ///< [E, H] or undefined
  ExpertActivation function;
  Tensor dact;
  Tensor weighted_act;  ///< [R, I], dtype of h
  GradDest dh, dweights;
};
void activation_grad(ThreadPool& pool, const ActivationGradArgs& args);

}  // namespace hone::cpu
