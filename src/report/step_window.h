// The mean of several steps, for logging_steps > 1.
#pragma once

#include "report/metrics.h"

namespace hone {

/// Collects steps and summarises them as one:
///   loss, loss_with_aux, mean_token_accuracy, entropy: mean weighted by the steps' supervised tokens;
///   loss/<name>: mean by the weight of that data set's tokens;
///   tokens_per_second, samples_per_second, mfu: mean weighted by step_time (that is, total over total time);
///   step_time, router/…, data/packing_efficiency: mean over steps; router/dropped_tokens: sum;
///   memory/…: largest; everything else (step, epoch, grad_norm, learning_rate, counts, eta, efficiency): of the last
///   step.
/// A NaN in any step makes the mean NaN. One step alone comes back bit for bit.
class StepWindow {
 public:
  void add(StepMetrics metrics) { steps_.push_back(std::move(metrics)); }
  bool empty() const { return steps_.empty(); }

  /// The summary; the window is empty afterwards. Taking from an empty window is an assertion.
  StepMetrics take();

 private:
  std::vector<StepMetrics> steps_;
};

}  // namespace hone
