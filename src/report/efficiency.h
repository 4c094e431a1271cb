// The efficiency metrics of a run, step by step.
#pragma once

#include <optional>

#include "report/metrics.h"

namespace hone {

/// Averages over the steps of this process after its warm-up. The first kWarmUpSteps steps (after a resume, too) have
/// no efficiency metrics and enter no average: they find cold caches, untouched memory and libraries not yet loaded.
class EfficiencyMeter {
 public:
  static constexpr int64_t kWarmUpSteps = 2;

  explicit EfficiencyMeter(int64_t total_steps = 0) : total_steps_(total_steps) {}

  /// Of the step whose `step`, `step_time`, `num_tokens`, `allocated` and `max_alloc` are given. Once a step, in order.
  std::optional<Efficiency> after(const StepMetrics& step);
  /// Mean seconds of a step after the warm-up, once there was one.
  std::optional<double> average_step() const {
    return timed_ > 0 ? std::optional(seconds_ / static_cast<double>(timed_)) : std::nullopt;
  }

 private:
  int64_t total_steps_;
  int64_t seen_ = 0, timed_ = 0;
  int64_t tokens_before_ = 0, tokens_ = 0;
  double seconds_ = 0;
  double peak_allocated_ = 0, peak_reserved_ = 0;
};

}  // namespace hone
