// Optimizer: clipping by one global norm, then AdamW on every trainable parameter of a store; or AdamW without clipping
// on one group of parameters after the other, while backward is at work. The arithmetic is ops.
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

  /// The same in groups: after begin_groups(), step_group() for disjoint ones. The norm in the scalars is that of the
  /// groups so far, so nothing can be clipped, and a gradient that is not finite voids its group and those after it.
  void begin_groups() { measured_.clear(); }
  void step_group(const Context& context, const std::vector<Parameter*>& parameters, StepScalars* scalars);

  /// After measure() or groups: the name of the first parameter whose gradient is not finite, or "". Waits.
  std::string first_nonfinite(Stream& stream);

 private:
  void add_to_norm(const Context& context, const std::vector<Parameter*>& parameters, StepScalars* scalars);
  void update(const Context& context, const std::vector<Parameter*>& parameters, const StepScalars* scalars);

  ParameterStore& store_;
  OptimizerOptions options_;
  Buffer results_;
  std::vector<const Parameter*> measured_;  // in this step, in order
};

}  // namespace hone
