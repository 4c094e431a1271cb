// The third phase of a run: weights, optimizer state and the position in the run. A checkpoint stores this phase;
// training advances it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "train/plan/base_cost.h"
#include "train/plan/planned_run.h"
#include "train/save/training_state.h"

namespace hone {

struct LoadedRun {
  PlannedRun& planned;
  RunState state;
  bool resumed = false;                    ///< from a checkpoint: state.step steps were done before
  std::optional<BaseCost> base_cost = {};  ///< what packing the base costs; measured where a run begins

  DescribedRun& described() const { return planned.described; }
  const RunConfig& config() const { return planned.described.config; }
  const TrainingData& data() const { return planned.described.data(); }
  LoadedModel& model() const { return *planned.described.model; }
  ParameterStore& store() const { return model().store(); }
  const Schedule& schedule() const { return planned.described.schedule; }
  RankGroup& group() const { return planned.group; }
  RunContext& context() const { return planned.group.context(); }
  Logger& logger() const { return context().logger; }
  Engine& engine() const { return *planned.engine; }

  /// Whether the run evaluates while it trains.
  bool evaluates() const;
  /// Whether an event with a period of `steps` steps, or with strategy "epoch" at the end of an epoch, is due now.
  bool is_due(Cadence strategy, const std::optional<int64_t>& steps) const;
};

/// Reads the model, and resumes from `checkpoint` if given; with resume: auto from the next older one if that is
/// damaged. All ranks get the same checkpoint. `planned` must outlive the result. UserError: the checkpoint is damaged,
/// or has other parameters or data.
LoadedRun load_planned(PlannedRun& planned, std::optional<std::filesystem::path> checkpoint);

/// The checkpoint selected by resume_from_checkpoint, if any; called on the first rank.
std::optional<std::filesystem::path> find_checkpoint(const RunConfig& config, Logger& logger);

/// Allocates the parameters (with gradients and optimizer state unless `inference`) and reads their values.
void load_weights(const DescribedModel& model, RunContext& context, bool inference);

/// Reads the trained parameters, as a full model or an adapter, from a folder that a run saved.
void read_saved_weights(const std::filesystem::path& folder, LoadedModel& model, ThreadPool& pool,
                        FileLedger* ledger = nullptr);

}  // namespace hone
