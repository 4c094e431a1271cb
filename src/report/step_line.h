// The console lines of steps and evaluations, and the mean of several steps.
#pragma once

#include <string>

#include "report/metrics.h"

namespace hone {

// The mean of several steps, for logging_steps > 1.

/// Collects steps and summarises them as one:
///   loss, loss_with_aux, mean_token_accuracy, entropy: mean weighted by the steps' supervised tokens;
///   loss/<name>: mean weighted by that data set's tokens;
///   tokens_per_second, samples_per_second, mfu: mean weighted by step_time (total over total time);
///   step_time, router/…, data/packing_efficiency, data/wait: mean over steps; router/dropped_tokens: sum;
///   memory/…: maximum; all others (step, epoch, grad_norm, learning_rate, counts, eta, efficiency): the last step's.
/// A NaN in any step makes the mean NaN. A single step is returned bit for bit.
class StepWindow {
 public:
  void add(StepMetrics metrics) { steps_.push_back(std::move(metrics)); }
  bool empty() const { return steps_.empty(); }

  /// Returns the summary and clears the window, which must not be empty (assertion).
  StepMetrics take();

 private:
  std::vector<StepMetrics> steps_;
};

struct LineLayout {
  int64_t total_steps = 0;
  int width = 100;  ///< columns; omits less important fields if the line would be longer
  bool color = false;
};

/// " 120/2000 loss 1.2345 grad 0.873 lr 9.85e-5 3.4k tok/s mem 12.3 GB load 1.32x eta 1h02m", with the token accuracy
/// after the loss if the width allows. Fields keep their columns from step to step. Numbers that are not finite are
/// red.
std::string step_line(const StepMetrics& metrics, const LineLayout& layout);

/// "   120/2000  eval loss 0.9123  perplexity 2.49  accuracy 81.2%  in 3.2s  best so far"
std::string eval_line(const EvalMetrics& metrics, const LineLayout& layout);

/// " 120/2000", with the same width for every step of the run.
std::string step_column(int64_t step, const LineLayout& layout);

}  // namespace hone
