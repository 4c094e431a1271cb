// The checkpoints of an output folder: checkpoint-<step>. Which of them are whole, which one a run goes on from, which
// ones may go. A folder of that name is a checkpoint if it holds a training state or a manifest of Hone; any other
// stays as it is. Who writes holds the folder's lock (core/folder_lock.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weights/model_folder.h"

namespace hone {

class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path output_dir) : output_dir_(std::move(output_dir)) {}

  std::filesystem::path path_of(int64_t step) const;
  /// Steps of the checkpoints, ascending (as numbers: 1000 comes after 999).
  std::vector<int64_t> steps() const;

  /// Writes the checkpoint of `step` as a whole: filled under a temporary name, synced, renamed. It takes the place of
  /// an earlier one of the step; a file of somebody else that lay in there stays in it.
  void write(int64_t step, const FillFolder& fill) const;

  struct Kept {
    int64_t newest = 0;
    int64_t best = -1;
    std::optional<int64_t> limit = {};
    int64_t major = 0;
  };
  /// After checkpoint `newest` was written. Deletes those of later steps, which the run left behind when it went back,
  /// and gives their names; then the oldest so that `limit` stay, never `best` or `newest`. Multiples of `major` (0:
  /// none) stay, later ones too, and do not count; nor do weights of a best evaluation (write_best).
  std::vector<std::string> prune(const Kept& kept) const;

  /// Writes the weights of an evaluation that was the best so far, and that they are: not to be resumed from.
  void write_best(int64_t step, const FillFolder& fill) const;
  /// Deletes those weights but of the steps `keep`.
  void drop_best(const std::vector<int64_t>& keep) const;

  /// Before a run goes on: removes what one that was killed left half written or half deleted, and puts back a
  /// checkpoint that it was about to replace.
  void tidy() const;

  /// Steps up to `last` for which something stands that no checkpoint may replace: another program's folder, a file.
  /// UserError with its path.
  void require_free_names(int64_t last) const;

  /// What resume_from_checkpoint names: "auto" the newest that is whole and has an optimizer (without one too, if
  /// `weights_suffice`), never the weights of a best evaluation; "best" the best that the newest knows of; else a path.
  /// Names, sizes and small files are checked here, the rest while it is read. Nothing if "auto" finds no checkpoint.
  /// What it finds damaged is renamed, and `notice` is told of what it passes over. UserError: there are checkpoints,
  /// and none can be used; a path is not there or damaged.
  using Notice = std::function<void(const std::string&)>;
  std::optional<std::filesystem::path> find(const std::string& resume_from_checkpoint, bool weights_suffice,
                                            const Notice& notice) const;

  /// Renames a checkpoint of this folder that has turned out damaged: checkpoint-4.damaged.
  struct PassedOver {
    std::string renamed;  ///< its new name
    std::string text;     ///< what the user is told
  };
  PassedOver pass_over(const std::filesystem::path& checkpoint, const std::string& problem) const;

  /// The branch that a run takes which goes on from `step` of branch `branch`: a new one, if there are checkpoints of
  /// later steps, so that they are not taken for newer ones.
  int64_t branch_from(int64_t step, int64_t branch) const;

 private:
  struct Candidate {
    int64_t step = 0, branch = 0;
  };
  std::vector<Candidate> candidates() const;
  /// Names of those that have been passed over.
  std::vector<std::string> damaged() const;
  std::optional<std::filesystem::path> find_newest(bool weights_suffice, const Notice& notice) const;
  std::filesystem::path best() const;

  std::filesystem::path output_dir_;
};

/// What is wrong with a checkpoint: a file that is missing, cut, or not as its manifest says; a state that contradicts
/// itself or the folder's name. "" if nothing is seen without reading the tensors.
std::string checkpoint_problem(const std::filesystem::path& checkpoint);

/// Removes the files that Hone wrote into a checkpoint or model folder, and the folder if nothing else is in it.
void remove_own_files(const std::filesystem::path& folder);

}  // namespace hone
