// load_balancing: the auxiliary loss of all routers of a model, from their measurements.
//
//   f_e = Σ_l counts[l, e] / (L · N)        the share of tokens that chose expert e, times k
//   P_e = Σ_l prob_sum[l, e] / (L · N)      its mean probability
//   aux = E · Σ_e f_e · P_e                 k under perfect balance
//
// Means are taken over all layers together, as in Hugging Face's load_balancing_loss_func, which is not the average of
// per-layer losses. Source: Fedus et al., "Switch Transformers" (arXiv:2101.03961), equations 4 to 6.
#pragma once

#include "core/stream/context.h"
#include "tape/step_scalars.h"

namespace hone {

/// Measurements of one micro-batch by the L routers of a model.
struct RoutingMeasurements {
  Tensor counts;      ///< f32 [L, E], choices of each expert
  Tensor prob_sum;    ///< f32 [L, E], Σ over tokens of the routers' probabilities
  Tensor token_sums;  ///< f32 [L, 2], Σ over tokens of the entropy of the routers' distributions (nats), and of z
};

/// Zeroes the measurements; called before the first block of a micro-batch.
void start_load_balancing(const Context& context, const RoutingMeasurements& measurements);

struct LoadBalancingArgs {
  Tensor counts, prob_sum;               ///< f32 [L, E]
  int64_t tokens = 0;                    ///< N, tokens of the micro-batch
  Tensor fractions;                      ///< out, f32 [E]: f, which router backward reads
  LossTotals* totals = nullptr;          ///< device memory; totals->aux_loss += aux · token_share
  const StepScalars* scalars = nullptr;  ///< device memory: token_share
};

/// Called after the last block of a micro-batch. Sums are float64 in a fixed order.
void finish_load_balancing(const Context& context, const LoadBalancingArgs& args);

namespace cpu {
void start_load_balancing(const Context& context, const RoutingMeasurements& measurements);
void finish_load_balancing(const Context& context, const LoadBalancingArgs& args);
}  // namespace cpu

namespace cuda {
void start_load_balancing(const Context& context, const RoutingMeasurements& measurements);
void finish_load_balancing(const Context& context, const LoadBalancingArgs& args);
}  // namespace cuda

}  // namespace hone
