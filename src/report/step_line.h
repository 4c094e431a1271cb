// Steps and evaluations on the console: a line each, and the mean of several steps.
#pragma once

#include <string>

#include "report/metrics.h"

namespace hone {

// The mean of several steps, for logging_steps > 1.

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

struct LineLayout {
  int64_t total_steps = 0;
  int width = 100;  ///< columns; fields of less interest are left out when the line would be longer
  bool color = false;
};

/// "   120/2000  loss 1.2345  grad 0.873  lr 9.85e-5   3.4k tok/s  mem 12.3 GB  load 1.32x  eta  1h02m"
/// with the token accuracy behind the loss where the width allows. Fields keep their columns from step to step.
/// Numbers that are not finite are red.
std::string step_line(const StepMetrics& metrics, const LineLayout& layout);

/// "   120/2000  eval loss 0.9123  perplexity 2.49  accuracy 81.2%  in 3.2s  best so far"
std::string eval_line(const EvalMetrics& metrics, const LineLayout& layout);

/// "   120/2000", as wide for every step of the run.
std::string step_column(int64_t step, const LineLayout& layout);

}  // namespace hone
