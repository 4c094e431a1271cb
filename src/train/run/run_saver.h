// RunSaver writes a run's checkpoints, the weights of its best evaluation and its final model. The first rank stages
// and commits each save, and all ranks write its tensor files; if ranks are lost, the lowest surviving rank does all of
// it.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "train/plan/rank_group.h"
#include "train/run/run_observer.h"
#include "train/save/checkpoint_folder.h"
#include "train/save/run_folder.h"
#include "weights/adapter.h"

namespace hone {

class RunSaver {
 public:
  /// `folder` is null on ranks that do not write. All arguments must outlive this.
  RunSaver(LoadedRun& run, RunFolder* folder, const RunObservers& observers);

  /// Called after a step. `last`: no step follows; `stopped`: by a signal; `better`: it was evaluated, and is the best
  /// so far.
  void after_step(bool last, bool stopped, bool better);
  /// Called after the loop: loads the weights of the best evaluation, if they were saved.
  void restore_best();
  void save_final_model();
  /// Called after an error. If other ranks are lost, saves the state that all ranks have, unless it is saved already or
  /// parts are missing.
  void save_as_survivor();

 private:
  std::filesystem::path path() const { return checkpoints_.path_of(run_.state.step); }
  bool is_due(bool last) const;
  void save_checkpoint();
  /// Saves the weights of a step that has no checkpoint.
  void save_best_weights();
  void write_checkpoint(const WriteFiles& write);
  /// The layout of adapters in checkpoints.
  AdapterLayout checkpoint_layout() const;
  AdapterSaveOptions adapter_options(AdapterLayout layout) const;
  /// The tensor files of the model or adapter.
  std::vector<TensorFile> model_files(AdapterLayout layout) const;
  /// Those of a checkpoint, which has the optimizer's state, too.
  std::vector<TensorFile> checkpoint_files() const;
  /// Writes the other files of the model or adapter, whose tensor files are `files`.
  void write_companions(const std::filesystem::path& directory, AdapterLayout layout,
                        std::span<const TensorFile> files) const;

  LoadedRun& run_;
  RunFolder* folder_;
  const RunObservers& observers_;
  CheckpointFolder checkpoints_;
  // Steps; -1: none.
  int64_t unevaluated_;  // the checkpoint that the run goes on from, if its evaluation is due
  int64_t last_saved_;
  int64_t saved_best_;  // the best step recorded in the newest checkpoint
};

}  // namespace hone
