// From the keys of the learning rate to its schedule.
#pragma once

#include "optim/schedule.h"
#include "session/run_config.h"

namespace hone {

/// UserError where warm-up, stable part and decay are longer than the run.
Schedule schedule_of(const RunConfig::Schedule& options, int64_t total_steps);

}  // namespace hone
