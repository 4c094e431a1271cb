#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hone {

double Schedule::at(int64_t step) const {
  if (step < warmup_steps) return learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (type == ScheduleType::kConstant) return learning_rate;
  const auto span = static_cast<double>(std::max<int64_t>(total_steps - warmup_steps, 1));
  const double t = std::min(static_cast<double>(step - warmup_steps) / span, 1.0);
  const double share = type == ScheduleType::kLinear ? 1.0 - t : 0.5 * (1.0 + std::cos(std::numbers::pi * t));
  return min_lr + (learning_rate - min_lr) * share;
}

}  // namespace hone
