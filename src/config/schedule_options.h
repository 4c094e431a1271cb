// Creates the learning rate schedule from the configuration.
#pragma once

#include "config/run_config.h"
#include "optim/schedule.h"

namespace hone {

/// The shape that a configuration names.
ScheduleType schedule_type_of(LrScheduler scheduler);

/// UserError if warm-up, stable part and decay are longer than the run.
Schedule schedule_of(const RunConfig::Schedule& options, int64_t total_steps);

}  // namespace hone
