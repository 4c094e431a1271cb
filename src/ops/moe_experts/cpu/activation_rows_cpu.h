// The activation between the two products of an expert, and its gradient together with that of the router weights.
#pragma once

#include "ops/moe_experts/cpu/expert_rows_cpu.h"

namespace hone::cpu {

/// act[r] = f of row r of h for the rows in use; h and act [R, I] have the same dtype.
void activate_rows(ThreadPool& pool, const ExpertRows& rows, const MlpActivation& function, const Tensor& h,
                   const Tensor& act);
/// Columns [column, column + n) of row r of both, n <= kRowBlock, from float32 gate and up, which are rounded to h's
/// dtype. Without a gate, `gate` is h, and `up` is not read.
void activate_columns(const RowMath& math, const MlpActivation& function, float* gate, float* up, const Tensor& h,
                      const Tensor& act, int64_t r, int64_t column, int64_t n);

/// With w = the router weight of row r's choice and dact f32 [R, I] = d out / d act without w:
///   d weights[choice] = <dact[r], act[r]> + <dout[token], bias_e>       dh[r] = w · dact[r] through f
///   weighted_act[r] = w · act[r]                operand of the weight gradients' products with dout
/// Each is computed only if wanted (weighted_act: if defined); dact may be undefined if neither gradient is wanted.
struct ActivationGradArgs {
  ExpertRows rows;
  Tensor h;        ///< [R, function.columns(I)]
  Tensor weights;  ///< [T, k]
  Tensor dout;     ///< [T, H], only read if there is a bias
  Tensor bias;     ///< [E, H] or undefined
  MlpActivation function;
  Tensor dact;
  Tensor weighted_act;  ///< [R, I], dtype of h
  GradDest dh, dweights;
};
void activation_grad(ThreadPool& pool, const ActivationGradArgs& args);

/// Zeroes the gradients of the router's weights of choices without a row.
void clear_weights_grad_elsewhere(ThreadPool& pool, const ExpertRows& rows, const GradDest& dweights);

/// activation_grad() in parts, for callers that compute dact themselves.
class ActivationGrad {
 public:
  explicit ActivationGrad(const ActivationGradArgs& args)
      : args_(args),
        intermediate_(args.function.width(args.h.shape[1])),
        wants_dact_(args.dh.wanted() || args.dweights.wanted()) {}

  /// Processes columns [column, column + n) of row r, n <= kRowBlock, given dact from there on, except for the router's
  /// weights; returns their part of <dact, act>.
  float columns(int64_t r, int64_t column, int64_t n, const float* dact) const;
  /// Stores the gradient of the weight of row r's choice, with `dot` = <dact[r], act[r]>.
  void store_weight_grad(int64_t expert, int64_t r, float dot) const;

 private:
  /// columns() for SwiGLU in one pass, if h has a gradient.
  float swiglu_columns(int64_t r, int64_t column, int64_t n, float w, const float* dact) const;
  /// weighted_act = w · act, if wanted. Overwrites act.
  void store_weighted(float w, float* act, int64_t r, int64_t column, int64_t n) const;
  float bias_dot(int64_t expert, int64_t token) const;

  const RowMath& math_ = row_math();
  const ActivationGradArgs& args_;
  const int64_t intermediate_;
  const bool wants_dact_;
};

/// The gradient of the router's weights only, from f32 `dots` [R, parts] whose rows sum to <dact[r], act[r]>.
void router_weights_grad(ThreadPool& pool, const ActivationGradArgs& args, const Tensor& dots);

}  // namespace hone::cpu
