// The learning rate of each optimizer step.
#pragma once

#include <cstdint>
#include <string>

namespace hone {

enum class ScheduleType { kCosine, kLinear, kConstant };

struct Schedule {
  ScheduleType type = ScheduleType::kCosine;
  double learning_rate = 0;  ///< peak
  double min_lr = 0;         ///< floor of cosine and linear
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  /// Rate of step s in [0, total_steps): (s + 1) / warmup_steps of the peak while s < warmup_steps (so the first step
  /// already learns), then with t = (s - warmup) / (total - warmup):
  ///   cosine    min_lr + (peak - min_lr) · (1 + cos πt) / 2
  ///   linear    min_lr + (peak - min_lr) · (1 - t)
  ///   constant  peak
  double at(int64_t step) const;
};

}  // namespace hone
