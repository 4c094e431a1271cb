// router: chooses experts and their weights for each token.
//
//   logits[n, e] = Σ_h x[n, h] · w[e, h] + b[e]    float32, from the stored dtypes; b is optional
//   s[n, e]      = softmax(logits[n, :]) over all E experts, or sigmoid(logits[n, e]); float32
//   c[n, e]      = s[n, e] + selection_bias[e]; with softmax, where neither a bias nor the sum of a group's two best
//                  asks for s, logits[n, e]
//   ids[n, :]    = the top_k largest c, largest first; of equal ones the lowest expert first
//   weights      = s at ids, divided by max(their sum + 1e-20, least_sum) if normalised; times scale; rounded once to
//                  the dtype of x
//   p[n, e]      = s with softmax; s / (Σ_e s + 1e-20) with sigmoid: for statistics and the auxiliary loss
//
// With softmax the largest logits have the largest s; comparing logits avoids near ties from rounding in exp. With
// groups a token first keeps its kept_groups best groups, of equal ones the lowest first; the other experts are not
// chosen.
//
// Normalised softmax equals the softmax over the chosen logits only.
//
// Sources: Shazeer et al., "Outrageously Large Neural Networks" (arXiv:1701.06538); softmax, top-k, renormalisation:
// Mixtral (arXiv:2401.04088), Qwen3-MoE, and as a softmax over the chosen logits Granite and gpt-oss (which has b);
// groups and scale: DeepSeek-V2 (arXiv:2405.04434); sigmoid and the bias of the selection: DeepSeek-V3
// (arXiv:2412.19437), Kimi-K2, GLM-4.5 and MiniMax-M2 after it; softmax with that bias, and least_sum: ERNIE 4.5
// (Ernie4_5_MoeTopKRouter of transformers 5).
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
/// has no gradient, so d aux / d p[n, e] = E · f_e / (L · N). Without fractions there is no such term.
struct RouterAuxLoss {
  Tensor fractions;                      ///< f32 [E], f; read by backward, after load_balancing has computed it
  int64_t num_layers = 0;                ///< L, number of routers that share the loss
  const StepScalars* scalars = nullptr;  ///< device memory: aux_scale multiplies the gradient
};

/// The z-loss, mean of z over all layers and tokens (Zoph et al., "ST-MoE", arXiv:2202.08906, equation 5), which keeps
/// logits small: d / d logits[n, e] = 2 · log Σ exp(logits[n, :]) · softmax(logits[n, :])[e] / (L · N), times the
/// coefficient and the micro-batch's share of the step's tokens, which makes it the token-weighted mean over
/// micro-batches.
struct RouterZLoss {
  float coefficient = 0;                 ///< 0: no z-loss
  int64_t num_layers = 0;                ///< L, number of routers that share the loss
  const StepScalars* scalars = nullptr;  ///< device memory: token_share
};

struct RouterArgs {
  Tensor x;                    ///< [T, H] float32 or bfloat16
  Tensor weight;               ///< [E, H] float32 or bfloat16
  Tensor bias = {};            ///< [E] float32 or bfloat16, or undefined: b
  Tensor selection_bias = {};  ///< f32 [E] or undefined
  Tensor given_ids = {};       ///< i32 [T, k]; if defined, replaces the top-k. May be `ids`
  Tensor ids;                  ///< out, i32 [T, k]
  Tensor weights;              ///< out, [T, k], dtype of x
  RouterRule rule = {};
  RouterStatistics statistics = {};
};

/// s is recomputed from x; ids are those of forward. With S = max(Σ s at ids + 1e-20, least_sum):
///   ds_j = scale · (dw_j − Σ_i dw_i · s_i / S) / S at the chosen experts if weights are normalised, without the sum
///   where S is least_sum, which no s changes; else scale · dw_j;
///   plus the auxiliary loss's; dlogits = s ∘ (ds − Σ_e s_e · ds_e) with softmax, s · (1 − s) · ds with sigmoid;
///   plus the z-loss's.
/// The selection bias has no gradient. Scratch: [T, E] float32 (on a CPU plus [threads, 2 E]). A GPU that multiplies
/// bfloat16 splits dlogits into two parts with 16 bits of precision together.
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

/// Deterministic: a token's results depend only on its row (on a GPU also on the number of rows, in the last bits), and
/// statistics are added in a fixed order. given_ids are in [0, E): others are an assertion on a CPU; on a GPU, which
/// supports up to 1024 experts, their weights are NaN and their ids 0.
void router(const Context& context, const RouterArgs& args);
void router_grad(const Context& context, const RouterGradArgs& args);

struct RouterOptions {
  int64_t top_k = 0;  ///< 1 … E, and at most the experts of the kept groups
  RouterRule rule = {};
  RouterStatistics statistics = {};
  RouterAuxLoss aux = {};
  RouterZLoss z_loss = {};
  Tensor forced_ids = {};  ///< i32 [T, k], fixed routing (verification); undefined: top-k
};

struct RouterWeights {
  Weight* weight = nullptr;                ///< [E, H]
  Weight* bias = nullptr;                  ///< [E], or null
  const Weight* selection_bias = nullptr;  ///< f32 [E], or null
};

struct RoutedTokens {
  Var ids;      ///< i32 [T, k], never recomputed, so that replays use the same experts
  Var weights;  ///< [T, k], dtype of x
};

/// Records the router of x [T, H]. Backward saves x and ids. A replay does not update statistics. A frozen router (its
/// weights have no gradient) still passes the gradient to x.
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
