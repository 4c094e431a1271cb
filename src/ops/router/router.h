// router: which experts each token goes to, and with which weights.
//
//   logits[n, e] = Σ_h x[n, h] · w[e, h]         float32, from the stored dtypes
//   p[n, :]      = softmax(logits[n, :])         over all E experts, float32
//   ids[n, :]    = the top_k largest logits, largest first; of equal ones the lowest expert first
//   weights      = p at ids, divided by their sum if normalise; rounded once to the dtype of x
//
// The largest logits are the largest p, without what rounding in exp would make of near ties.
//
// Sources: Shazeer et al., "Outrageously Large Neural Networks" (arXiv:1701.06538); the order softmax, top-k,
// renormalisation is Mixtral's (arXiv:2401.04088) and, with norm_topk_prob, Qwen3-MoE's.
#pragma once

#include "graph/step_scalars.h"
#include "graph/tape.h"

namespace hone {

/// A layer's row of the routing measurements. A router adds to them; load_balancing zeroes them.
struct RouterStatistics {
  Tensor counts;    ///< f32 [E], how often each expert was chosen (exact up to 2^24)
  Tensor prob_sum;  ///< f32 [E], Σ over tokens of p
  Tensor entropy;   ///< f32 [1], Σ over tokens of the entropy of p, nats

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

struct RouterArgs {
  Tensor x;          ///< [T, H] float32 or bfloat16
  Tensor weight;     ///< [E, H] float32 or bfloat16
  Tensor given_ids;  ///< i32 [T, k]; defined: these experts instead of the top-k. May be `ids`
  Tensor ids;        ///< out, i32 [T, k]
  Tensor weights;    ///< out, [T, k], dtype of x
  bool normalise = true;
  RouterStatistics statistics;
};

/// p is formed again from x; ids are those of the forward. Scratch: [T, E] float32. Where a GPU multiplies bfloat16 it
/// takes dlogits in two parts that carry 16 bits together.
struct RouterGradArgs {
  Tensor x, weight;
  Tensor ids;       ///< i32 [T, k]
  Tensor dweights;  ///< [T, k], dtype of x
  bool normalise = true;
  RouterAuxLoss aux;
  GradDest dx;       ///< [T, H], dtype of x
  GradDest dweight;  ///< [E, H] float32
};

/// Deterministic: a token's results depend on its row only (on a GPU also on how many rows there are, in the last
/// bits), and statistics add up in one fixed order. given_ids are in [0, E): others are an assertion on a CPU; on a
/// GPU, which takes up to 1024 experts, their weights are NaN and their ids 0.
void router(const Context& context, const RouterArgs& args);
void router_grad(const Context& context, const RouterGradArgs& args);

struct RouterOptions {
  int64_t top_k = 0;      ///< 1 … E
  bool normalise = true;  ///< norm_topk_prob
  RouterStatistics statistics;
  RouterAuxLoss aux;
  Tensor forced_ids;  ///< i32 [T, k], routing given from outside (verification); undefined: top-k
};

struct RoutedTokens {
  Var ids;      ///< i32 [T, k], never recomputed: replays use the same experts
  Var weights;  ///< [T, k], dtype of x
};

/// Records the router of x [T, H] with w [E, H]. Backward saves x and ids. Statistics are not taken by a replay.
/// A frozen router (w wants no gradient) still passes the gradient to x.
RoutedTokens router(Tape& tape, Var x, Weight& w, const RouterOptions& options);

namespace cpu {
void router(const Context& context, const RouterArgs& args);
void router_grad(const Context& context, const RouterGradArgs& args);
}  // namespace cpu

namespace cuda {
void router(const Context& context, const RouterArgs& args);
void router_grad(const Context& context, const RouterGradArgs& args);
}  // namespace cuda

}  // namespace hone
