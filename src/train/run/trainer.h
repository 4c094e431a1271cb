// A complete run, from its configuration to the saved model, in phases:
//
//   described  (described_run.h)  configuration resolved, headers and data read
//   planned    (planned_run.h)    formats, recomputation and batch such that it fits in memory
//   loaded     (loaded_run.h)     weights and state on the device
//   running    (running_run.h)    the loop
//
// Each phase is a value that a function creates from the one before, with only the members that are valid in it. A
// caller that stops earlier calls these functions itself, as dry_run and validate do.
#pragma once

#include "core/base/error.h"
#include "train/plan/run_context.h"

namespace hone {

/// Trains, evaluates and saves. Values of `config` that depend on model and data may be unset. Returns kResumable if a
/// signal stopped it after a checkpoint was written. Throws UserError, and Error(kNumbersLost) if a loss or gradient is
/// not finite and nan_policy is stop.
ExitCode train(RunConfig config, RunContext& context);

/// Loads the model, logs the mask of a sample, the memory plan and what packing the base costs, runs one step without
/// updating, estimates the time; writes nothing.
void dry_run(RunConfig config, RunContext& context);

/// Checks the model's headers, the data and the output folder, and logs a sample's mask; reads no weights, writes
/// nothing.
void validate(RunConfig config, RunContext& context);

}  // namespace hone
