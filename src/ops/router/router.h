// router: which experts each token goes to, and with which weights.
//
//   logits[n, e] = Σ_h x[n, h] · w[e, h] + b[e]    float32, from the stored dtypes; b is optional
//   s[n, e]      = softmax(logits[n, :]) over all E experts, or sigmoid(logits[n, e]); float32
//   c[n, e]      = logits[n, e] with softmax; s[n, e] + selection_bias[e] with sigmoid
//   ids[n, :]    = the top_k largest c, largest first; of equal ones the lowest expert first
//   weights      = s at ids, divided by (their sum + 1e-20) if normalised; times scale; rounded once to the dtype of x
//   p[n, e]      = s with softmax; s / (Σ_e s + 1e-20) with sigmoid: for statistics and the auxiliary loss
//
// With softmax the largest logits are the largest s, without near ties that rounding in exp would create. With groups a
// token first keeps its kept_groups best groups, of equal ones the lowest first; c of all other experts then counts as
// 0, which with softmax is below every s (their logits count as -infinity).
//
// Normalised softmax is also the softmax over the chosen logits alone.
//
// Sources: Shazeer et al., "Outrageously Large Neural Networks" (arXiv:1701.06538); softmax, top-k, renormalisation:
// Mixtral (arXiv:2401.04088), Qwen3-MoE, and as a softmax over the chosen logits Granite and gpt-oss (which has b);
// groups and scale: DeepSeek-V2 (arXiv:2405.04434); sigmoid and the bias of the selection: DeepSeek-V3
// (arXiv:2412.19437), Kimi-K2 and GLM-4.5 after it.
#pragma once

#include "ops/router/router_rule.h"
#include "tape/step_scalars.h"
#include "tape/tape.h"

namespace hone {

/// A layer's row of the routing measurements. A router adds to them; load_balancing zeroes them.
struct RouterStatistics {
  Tensor counts;      ///< f32 [E], how often each expert was chosen (exact up to 2^24)
  Tensor prob_sum;    ///< f32 [E], Σ over tokens of p
  Tensor token_sums;  ///< f32 [2], Σ over tokens of the entropy of p (nats), and of z = (log Σ_e exp(logits[n, e]))²

  bool wanted() const { return counts.defined(); }
};

/// The auxiliary load-balancing loss aux = E · Σ_e f_e · P_e, where f_e = (choices of e in all layers) / (L · N) and
/// P_e = mean of p[n, e] over all layers and tokens (Fedus et al., arXiv:2101.03961, as in Hugging Face's Mixtral). f
/// carries no gradient, so d aux / d p[n, e] = E · f_e / (L · N). Undefined fractions: no such term.
struct RouterAuxLoss {
  Tensor fractions;                      ///< f32 [E], f; read by backward, when load_balancing has finished it
  int64_t num_layers = 0;                ///< L, routers that share the loss
  const StepScalars* scalars = nullptr;  ///< device memory: aux_scale multiplies the gradient
};

/// The z-loss, mean of z over all layers and tokens (Zoph et al., "ST-MoE", arXiv:2202.08906, equation 5), which keeps
/// logits small: d / d logits[n, e] = 2 · log Σ exp(logits[n, :]) · softmax(logits[n, :])[e] / (L · N), times
/// coefficient and the micro-batch's share of the step's tokens, so that over micro-batches it is the token-weighted
/// mean.
struct RouterZLoss {
  float coefficient = 0;                 ///< 0: no such term
  int64_t num_layers = 0;                ///< L, routers that share the loss
  const StepScalars* scalars = nullptr;  ///< device memory: token_share
};

struct RouterArgs {
  Tensor x;                    ///< [T, H] float32 or bfloat16
  Tensor weight;               ///< [E, H] float32 or bfloat16
  Tensor bias = {};            ///< [E] float32 or bfloat16, or undefined: b
  Tensor selection_bias = {};  ///< f32 [E] or undefined; with sigmoid only
  Tensor given_ids = {};       ///< i32 [T, k]; defined: these experts instead of the top-k. May be `ids`
  Tensor ids;                  ///< out, i32 [T, k]
  Tensor weights;              ///< out, [T, k], dtype of x
  RouterRule rule = {};
  RouterStatistics statistics = {};
};

/// s is formed again from x; ids are those of the forward. With S = Σ s at ids + 1e-20:
///   ds_j = scale · (dw_j − Σ_i dw_i · s_i / S) / S at the chosen experts if weights are normalised, else scale · dw_j;
///   the auxiliary loss adds its own; dlogits = s ∘ (ds − Σ_e s_e · ds_e) with softmax, s · (1 − s) · ds with sigmoid;
///   the z-loss adds its own to that.
/// The selection bias has no gradient. Scratch: [T, E] float32 (on a CPU [threads, 2 E] more). Where a GPU multiplies
/// bfloat16 it takes dlogits in two parts that carry 16 bits together.
struct RouterGradArgs {
  Tensor x, weight;
  Tensor bias = {};
  Tensor ids;       ///< i32 [T, k]
  Tensor dweights;  ///< [T, k], dtype of x
  RouterRule rule = {};
  RouterAuxLoss aux = {};
  RouterZLoss z_loss = {};
  GradDest dx;          ///< [T, H], dtype of x
  GradDest dweight;     ///< [E, H] float32
  GradDest dbias = {};  ///< [E] float32
};

/// Deterministic: a token's results depend on its row only (on a GPU also on how many rows there are, in the last
/// bits), and statistics add up in one fixed order. given_ids are in [0, E): others are an assertion on a CPU; on a
/// GPU, which takes up to 1024 experts, their weights are NaN and their ids 0.
void router(const Context& context, const RouterArgs& args);
void router_grad(const Context& context, const RouterGradArgs& args);

struct RouterOptions {
  int64_t top_k = 0;  ///< 1 … E, and no more than the kept groups have
  RouterRule rule = {};
  RouterStatistics statistics = {};
  RouterAuxLoss aux = {};
  RouterZLoss z_loss = {};
  Tensor forced_ids = {};  ///< i32 [T, k], routing given from outside (verification); undefined: top-k
};

struct RouterWeights {
  Weight* weight = nullptr;                ///< [E, H]
  Weight* bias = nullptr;                  ///< [E], or null
  const Weight* selection_bias = nullptr;  ///< f32 [E], or null
};

struct RoutedTokens {
  Var ids;      ///< i32 [T, k], never recomputed: replays use the same experts
  Var weights;  ///< [T, k], dtype of x
};

/// Records the router of x [T, H]. Backward saves x and ids. Statistics are not taken by a replay. A frozen router (its
/// weights want no gradient) still passes the gradient to x.
RoutedTokens router(Tape& tape, Var x, const RouterWeights& weights, const RouterOptions& options);

namespace cpu {
void router(const Context& context, const RouterArgs& args);
void router_grad(const Context& context, const RouterGradArgs& args);
}  // namespace cpu

namespace cuda {
void router(const Context& context, const RouterArgs& args);
void router_grad(const Context& context, const RouterGradArgs& args);
}  // namespace cuda

}  // namespace hone
