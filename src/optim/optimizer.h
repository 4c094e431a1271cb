// Optimizer: clipping by one global norm, then AdamW on every trainable parameter of a store. The arithmetic is ops.
#pragma once

#include <string>
#include <vector>

#include "core/buffer.h"
#include "graph/step_scalars.h"
#include "params/parameter_store.h"

namespace hone {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;
  double max_grad_norm = 1;             ///< 0: no clipping
  bool decay_norms_and_biases = false;  ///< false: no decay on tensors of fewer than two dimensions
};

class Optimizer {
 public:
  /// Takes the store's trainable parameters at the time of each call.
  Optimizer(ParameterStore& store, const OptimizerOptions& options);

  /// Writes grad_norm, clip_coefficient and nonfinite into the scalars (device memory).
  void measure(const Context& context, StepScalars* scalars);
  /// Steps every trainable parameter with the scalars' rate, corrections and clip coefficient; nothing if nonfinite.
  void update(const Context& context, const StepScalars* scalars);

  /// After measure(): the name of the first parameter whose gradient is not finite, or "". Waits.
  std::string first_nonfinite(Stream& stream);

 private:
  ParameterStore& store_;
  OptimizerOptions options_;
  Buffer results_;
};

}  // namespace hone
