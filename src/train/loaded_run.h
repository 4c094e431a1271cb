// The third phase of a run: weights and optimizer state on the device, and where the run stands. What a checkpoint
// holds is this; training moves it on.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "train/planned_run.h"
#include "train/training_state.h"

namespace hone {

struct LoadedRun {
  PlannedRun& planned;
  RunState state;
  double epoch = 0;      ///< after the last step of this process; 0 before it
  bool resumed = false;  ///< from a checkpoint: state.step steps were done before

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

  /// Whether something is due now that happens every `steps` steps, or with strategy "epoch" when one ends.
  bool is_due(const std::string& strategy, const std::optional<int64_t>& steps) const;
};

/// Reads the model, and goes on from `checkpoint` if there is one; with resume: auto from the next older one where that
/// turns out damaged. All ranks are given the same checkpoint. The plan outlives this. UserError: a checkpoint that is
/// damaged, or of other parameters or data.
LoadedRun load_planned(PlannedRun& planned, std::optional<std::filesystem::path> checkpoint);

/// The checkpoint that resume_from_checkpoint names, if any: for the first rank to look up.
std::optional<std::filesystem::path> find_checkpoint(const RunConfig& config, Logger& logger);

/// Allocates the parameters, with what training keeps of them unless `inference`, and reads them.
void load_weights(const DescribedModel& model, RunContext& context, bool inference);

/// Reads the trained parameters, whole or as an adapter, from what a run saved.
void read_saved_weights(const std::filesystem::path& folder, LoadedModel& model, ThreadPool& pool,
                        ReadLedger* ledger = nullptr);

}  // namespace hone
