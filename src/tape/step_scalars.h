// Values that change from step to step. They are in device memory: kernel launches do not depend on them.
#pragma once

#include <cstdint>

namespace hone {

/// The trainer writes them before a step (one copy); kernels read them and write the results.
struct StepScalars {
  float inv_loss_weight = 0;  ///< 1 / Σ loss weights of all supervised tokens of the optimizer step
  float aux_scale = 0;        ///< coefficient of the auxiliary loss × tokens of this micro-batch / tokens of the step
  float learning_rate = 0;
  float bias_correction1 = 1;  ///< 1 - beta1^t
  float bias_correction2 = 1;  ///< AdamW: 1 - beta2^t; Adafactor: 1 - beta2t = t^decay_rate
  float max_grad_norm = 0;     ///< 0: no clipping
  float grad_norm = 0;         ///< written by clip: global 2-norm before clipping
  float clip_coefficient = 1;  ///< written by clip: min(1, max_grad_norm / (grad_norm + 1e-6))
  int32_t nonfinite = 0;       ///< written by clip: 1 skips the optimizer step
  int32_t reserved = 0;
  uint64_t seed = 0;       ///< key of the run's random numbers for this optimizer step
  double token_share = 1;  ///< tokens of this micro-batch / tokens of the step (of all batches in evaluation)
};

/// Sums over the supervised tokens of an optimizer step, in device memory; zeroed before it.
struct LossTotals {
  double weighted_loss = 0;  ///< Σ w · l
  double weight = 0;         ///< Σ w
  double hits = 0;           ///< supervised tokens whose target has the largest logit
  double entropy = 0;        ///< Σ entropy of the predicted distribution, nats
  double tokens = 0;         ///< supervised tokens
  double aux_loss = 0;       ///< Σ over micro-batches of aux loss × share of the step's tokens (no coefficient)
};

}  // namespace hone
