// The second phase of a run: where everything lies, in which formats and batches, and what backward recomputes, so that
// it fits in the device's memory. Parameters have addresses and no memory yet.
#pragma once

#include <memory>

#include "train/described_run.h"
#include "train/engine.h"
#include "train/rank_group.h"

namespace hone {

struct PlannedRun {
  RankGroup& group;
  DescribedRun& described;
  std::unique_ptr<Engine> engine;
  MemoryPlan memory;
};

/// Chooses recomputation as gradient_checkpointing allows; with auto_find_batch_size a plan that does not fit describes
/// the run again with half the batch. Logs devices, memory and what was chosen. UserError if the run does not fit: it
/// names the setting that costs least and makes it fit, found by going on like that. Both outlive the plan.
PlannedRun plan_run(DescribedRun& run, RankGroup& group);

/// An engine for evaluations of the model as it is now, adapters attached or not; its plan has not been made.
std::unique_ptr<Engine> evaluation_engine(const DescribedRun& run, RunContext& context);

/// What a described model says of an engine: all but data sets, recomputation and ranks.
EngineOptions engine_options(const DescribedModel& model, const BatchCapacity& capacity);

/// With device: auto, of a GPU that this build has no code for.
void warn_of_unused_gpu(const RunConfig& config, RunContext& context);

}  // namespace hone
