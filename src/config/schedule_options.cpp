#include "config/schedule_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace hone {

namespace {

/// Converts steps that may be given as a share of the run.
int64_t steps_of(double stated, int64_t total) {
  return static_cast<int64_t>(std::ceil(stated < 1 ? stated * static_cast<double>(total) : stated));
}

/// Sets warm-up, stable part and decay.
void set_stable_and_decay(Schedule& schedule, const RunConfig::Schedule& options) {
  const int64_t rest = std::max<int64_t>(schedule.total_steps - schedule.warmup_steps, 0);
  schedule.decay = options.decay_type;
  schedule.decay_steps = std::max<int64_t>(steps_of(options.num_decay_steps, schedule.total_steps), 1);
  schedule.stable_steps = options.num_stable_steps.value_or(std::max<int64_t>(rest - schedule.decay_steps, 0));
  if (schedule.stable_steps + schedule.decay_steps <= rest) return;
  throw UserError(fmt::format("warm-up ({}), stable part ({}) and decay ({}) are longer than the run of {} steps",
                              schedule.warmup_steps, schedule.stable_steps, schedule.decay_steps, schedule.total_steps),
                  "lr_scheduler_type: warmup_stable_decay",
                  "lower warmup_steps, num_stable_steps or num_decay_steps, or train for longer");
}

}  // namespace

ScheduleType schedule_type_of(LrScheduler scheduler) {
  switch (scheduler) {
    case LrScheduler::kCosine:
    case LrScheduler::kCosineWithMinLr:
      return ScheduleType::kCosine;
    case LrScheduler::kCosineWithRestarts:
      return ScheduleType::kCosineWithRestarts;
    case LrScheduler::kLinear:
      return ScheduleType::kLinear;
    case LrScheduler::kConstant:
    case LrScheduler::kConstantWithWarmup:
      return ScheduleType::kConstant;
    case LrScheduler::kWarmupStableDecay:
    case LrScheduler::kOneMinusSqrt:
      return ScheduleType::kWarmupStableDecay;
    case LrScheduler::kPolynomial:
      return ScheduleType::kPolynomial;
    case LrScheduler::kInverseSqrt:
      return ScheduleType::kInverseSqrt;
  }
  HONE_ASSERT(false, "every scheduler has a type");
}

Schedule schedule_of(const RunConfig::Schedule& options, int64_t total_steps) {
  constexpr int64_t kTimescale = 10000;  // transformers' default without warm-up
  Schedule schedule;
  schedule.type = schedule_type_of(options.lr_scheduler_type);
  schedule.learning_rate = options.learning_rate;
  schedule.min_lr = options.min_lr.value_or(options.min_lr_ratio.value_or(0.0) * options.learning_rate);
  schedule.total_steps = total_steps;
  schedule.warmup_steps = options.warmup_steps.value_or(
      static_cast<int64_t>(std::ceil(options.warmup_ratio * static_cast<double>(total_steps))));
  schedule.num_cycles = options.num_cycles.value_or(schedule.type == ScheduleType::kCosine ? 0.5 : 1);
  schedule.power = options.power;
  schedule.timescale = options.timescale.value_or(schedule.warmup_steps > 0 ? schedule.warmup_steps : kTimescale);
  if (schedule.type == ScheduleType::kWarmupStableDecay) set_stable_and_decay(schedule, options);
  return schedule;
}

}  // namespace hone
