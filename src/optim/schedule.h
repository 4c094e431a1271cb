// The learning rate of each optimizer step.
#pragma once

#include <cstdint>
#include <string>

namespace hone {

enum class ScheduleType {
  kCosine,
  kLinear,
  kConstant,
  kCosineWithRestarts,
  kWarmupStableDecay,
  kPolynomial,
  kInverseSqrt,
};

/// The shape of the decay in kWarmupStableDecay.
enum class DecayShape { kLinear, kCosine, kOneMinusSqrt };

struct Schedule {
  ScheduleType type = ScheduleType::kCosine;
  double learning_rate = 0;  ///< peak
  double min_lr = 0;         ///< floor of all schedules but constant and inverse_sqrt
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double num_cycles = 0.5;                 ///< kCosine: waves; kCosineWithRestarts: decays, an integer
  double power = 1;                        ///< for kPolynomial
  int64_t stable_steps = 0;                ///< for kWarmupStableDecay: steps at the peak after warm-up
  int64_t decay_steps = 0;                 ///< for kWarmupStableDecay: steps from the peak to the floor
  DecayShape decay = DecayShape::kCosine;  ///< the decay of kWarmupStableDecay
  int64_t timescale = 10000;               ///< for kInverseSqrt

  /// The rate of step s in [0, total_steps): peak · (s + 1) / warmup_steps while s < warmup_steps (so the rate of the
  /// first step is not 0), then, with t = (s - warmup) / (total - warmup), min_lr + (peak - min_lr) · share:
  ///   cosine                (1 + cos 2π·num_cycles·t) / 2
  ///   cosine_with_restarts  (1 + cos π·(num_cycles·t mod 1)) / 2
  ///   linear                1 - t
  ///   polynomial            (1 - t)^power
  ///   warmup_stable_decay   1 for stable_steps, then with u = (steps since) / decay_steps
  ///                         linear 1 - u, cosine (1 + cos πu) / 2, 1-sqrt 1 - √u; 0 afterwards
  /// and without a floor
  ///   constant              peak
  ///   inverse_sqrt          peak · √(timescale / (s - warmup + timescale))
  /// Source: transformers, optimization.py, whose warm-up uses s instead of s + 1 (and starts warmup_stable_decay at
  /// the floor).
  double at(int64_t step) const;

 private:
  double share(int64_t step) const;
};

}  // namespace hone
