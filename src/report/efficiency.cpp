#include "report/efficiency.h"

#include <algorithm>
#include <utility>

namespace hone {

std::optional<Efficiency> EfficiencyMeter::after(const StepMetrics& step) {
  constexpr double kMegabyte = 1 << 20;
  const int64_t tokens = step.num_tokens - std::exchange(tokens_before_, step.num_tokens);
  if (++seen_ <= kWarmUpSteps) return std::nullopt;
  ++timed_;
  seconds_ += step.step_time;
  tokens_ += tokens;
  const double reserved = step.max_alloc.value_or(0);
  peak_allocated_ = std::max(peak_allocated_, step.allocated);
  peak_reserved_ = std::max(peak_reserved_, reserved);
  const double average = seconds_ / static_cast<double>(timed_);
  const auto rate = [](int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  return Efficiency{
      .step_time_sec = step.step_time,
      .avg_step_time_sec = average,
      .time_to_completion_sec = average * static_cast<double>(std::max<int64_t>(0, total_steps_ - step.step)),
      .estimated_total_time_sec = average * static_cast<double>(total_steps_),
      .step_peak_memory_allocated_MB = step.allocated / kMegabyte,
      .total_peak_memory_allocated_MB = peak_allocated_ / kMegabyte,
      .step_peak_memory_reserved_MB = reserved / kMegabyte,
      .total_peak_memory_reserved_MB = peak_reserved_ / kMegabyte,
      .step_tokens_per_second = rate(tokens, step.step_time),
      .avg_tokens_per_second = rate(tokens_, seconds_)};
}

}  // namespace hone
