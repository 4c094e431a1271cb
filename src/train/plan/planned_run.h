// The second phase of a run: placement, formats, batch size and recomputation such that the run fits in device memory.
// Parameters have addresses but no memory yet.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "report/table.h"
#include "train/plan/described_run.h"
#include "train/plan/rank_group.h"
#include "train/step/engine.h"

namespace hone {

struct PlannedRun {
  RankGroup& group;
  DescribedRun& described;
  std::unique_ptr<Engine> engine;
  MemoryPlan memory;
  std::vector<MemoryRow> memory_rows;  ///< as the table shows them
  int64_t memory_available = 0;        ///< bytes that the rows are compared with
};

/// Logs what the ranks of a host keep once of experts in host memory, if they share any.
void report_shared_experts(const DescribedRun& run, Logger& logger);

/// Decides what experts_device: auto is, logs it, and describes the run's model again for it. A run that continues from
/// `checkpoint` has the place of the run that wrote it. Does nothing if the key is not auto.
void choose_experts_device(DescribedRun& run, RankGroup& group, RunUse use,
                           const std::optional<std::filesystem::path>& checkpoint = {});

/// Decides what cpu_offload: auto offloads, logs it, and describes the run's model again for it. After
/// choose_experts_device. Does nothing if the key is not auto. Collective.
void choose_offload(DescribedRun& run, RankGroup& group, RunUse use);

/// Chooses the experts' place and recomputation within gradient_checkpointing; with auto_find_batch_size a run that
/// does not fit is described again with half the batch. Logs devices, memory and the choices. UserError if the run does
/// not fit: it contains the cheapest setting that makes the run fit, found by further dry passes. Run and group must
/// outlive the plan. `checkpoint`: from which the run continues.
PlannedRun plan_run(DescribedRun& run, RankGroup& group, const std::optional<std::filesystem::path>& checkpoint = {});

/// An engine for evaluations of the model in its current state, with or without adapters; plan() has not been called.
std::unique_ptr<Engine> evaluation_engine(const DescribedRun& run, const RankGroup& group);

/// UserError if an evaluation does not fit in memory, with settings that help. Parameters get dry addresses.
/// Collective.
void require_evaluation_fits(const DescribedRun& run, RankGroup& group);

/// Engine options from a described model: all but data sets, recomputation and ranks.
EngineOptions engine_options(const DescribedModel& model, const BatchCapacity& capacity, Device device);

}  // namespace hone
