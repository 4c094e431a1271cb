// RunSaver: writes a run's checkpoints, the weights of its best evaluation and its final model. The first rank writes,
// with what the others have of the state; where ranks are lost, the lowest one that is left.
#pragma once

#include <filesystem>
#include <functional>

#include "train/checkpoint_folder.h"
#include "train/run_folder.h"
#include "train/run_observer.h"

namespace hone {

class RunSaver {
 public:
  /// `folder` is null on ranks that do not write. All outlive this.
  RunSaver(LoadedRun& run, RunFolder* folder, const RunObservers& observers);

  /// After a step. `last`: none follows; `stopped`: by a signal; `better`: it was evaluated, and is the best so far.
  void after_step(bool last, bool stopped, bool better);
  /// After the loop: replaces the weights by those of the best evaluation, as far as they were saved.
  void restore_best();
  void save_final_model();
  /// After an error: where other ranks are lost, saves what all of them have, unless it is saved or parts are gone.
  void save_as_survivor();

 private:
  std::filesystem::path path() const { return checkpoints_.path_of(run_.state.step); }
  bool is_due(bool last) const;
  void save_checkpoint();
  /// Of a step that has no checkpoint.
  void save_best_weights();
  void write_checkpoint(StateReader& reader);
  void save_model(const std::filesystem::path& directory, AdapterLayout layout, StateReader& reader,
                  FileChecksums& checksums) const;

  LoadedRun& run_;
  RunFolder* folder_;
  const RunObservers& observers_;
  CheckpointFolder checkpoints_;
  int64_t last_saved_, saved_best_;  // steps; the best one that the newest checkpoint knows; -1: none
};

}  // namespace hone
