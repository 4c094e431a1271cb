#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hone {

namespace {

constexpr double kPi = std::numbers::pi;

double decayed(DecayShape shape, double u) {
  switch (shape) {
    case DecayShape::kCosine:
      return 0.5 * (1.0 + std::cos(kPi * u));
    case DecayShape::kOneMinusSqrt:
      return 1.0 - std::sqrt(u);
    case DecayShape::kLinear:
      break;
  }
  return 1.0 - u;
}

}  // namespace

double Schedule::share(int64_t step) const {
  const auto since = static_cast<double>(step - warmup_steps);
  const double t = std::min(since / static_cast<double>(std::max<int64_t>(total_steps - warmup_steps, 1)), 1.0);
  switch (type) {
    case ScheduleType::kCosine:
      return 0.5 * (1.0 + std::cos(2.0 * kPi * num_cycles * t));
    case ScheduleType::kCosineWithRestarts:
      return t >= 1.0 ? 0.0 : 0.5 * (1.0 + std::cos(kPi * std::fmod(num_cycles * t, 1.0)));
    case ScheduleType::kPolynomial:
      return std::pow(1.0 - t, power);
    case ScheduleType::kWarmupStableDecay: {
      const double falling = since - static_cast<double>(stable_steps), steps = static_cast<double>(decay_steps);
      return falling < 0 ? 1.0 : falling >= steps ? 0.0 : decayed(decay, falling / steps);
    }
    default:
      return 1.0 - t;
  }
}

double Schedule::at(int64_t step) const {
  if (step < warmup_steps) return learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (type == ScheduleType::kConstant) return learning_rate;
  if (type == ScheduleType::kInverseSqrt) {
    const auto scale = static_cast<double>(timescale);
    return learning_rate * std::sqrt(scale / (static_cast<double>(step - warmup_steps) + scale));
  }
  return min_lr + (learning_rate - min_lr) * share(step);
}

}  // namespace hone
