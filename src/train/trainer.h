// A whole run, from its configuration to the saved model, through its phases:
//
//   described  (described_run.h)  configuration resolved, headers and data read
//   planned    (planned_run.h)    formats, recomputation and batch such that it fits in memory
//   loaded     (loaded_run.h)     weights and state on the device
//   running    (running_run.h)    the loop
//
// Each is a value that a function makes of the one before, and has what is valid in it alone. What stops earlier calls
// these functions itself, as those below do.
#pragma once

#include "core/error.h"
#include "train/run_context.h"

namespace hone {

/// Trains, evaluates and saves. `config` may leave what depends on model and data open. kResumable if a signal stopped
/// it after a checkpoint was written. Throws UserError, and Error(kNumbersLost) where a loss or gradient is not finite
/// and nan_policy is stop.
ExitCode train(RunConfig config, RunContext& context);

/// Loads, shows the mask of a sample and the memory plan, runs one step without updating, estimates the time; writes
/// nothing.
void dry_run(RunConfig config, RunContext& context);

/// Checks the model's headers, the data and the output folder, and shows a sample's mask; reads no weight, writes
/// nothing.
void validate(RunConfig config, RunContext& context);

}  // namespace hone
