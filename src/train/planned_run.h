// The second phase of a run: placement, formats, batch size and recomputation such that the run fits in device memory.
// Parameters have addresses but no memory yet.
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

/// Chooses recomputation within gradient_checkpointing; with auto_find_batch_size a run that does not fit is described
/// again with half the batch. Logs devices, memory and the choices. UserError if the run does not fit: it contains the
/// cheapest setting that makes the run fit, found by further dry passes. Both arguments must outlive the plan.
PlannedRun plan_run(DescribedRun& run, RankGroup& group);

/// An engine for evaluations of the model in its current state, with or without adapters; plan() has not been called.
std::unique_ptr<Engine> evaluation_engine(const DescribedRun& run, const RankGroup& group);

/// UserError if an evaluation does not fit in memory, with settings that help. Parameters get dry addresses.
/// Collective.
void require_evaluation_fits(const DescribedRun& run, RankGroup& group);

/// Engine options from a described model: all but data sets, recomputation and ranks.
EngineOptions engine_options(const DescribedModel& model, const BatchCapacity& capacity, Device device);

}  // namespace hone
