// The checkpoints of an output folder, named checkpoint-<step>: which are complete, which one a run resumes from, and
// which are deleted. A folder of that name is a checkpoint if it holds a training state or a manifest of Hone; other
// folders are left alone. The writer holds the folder's lock (core/files/folder_lock.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/resume_from.h"
#include "weights/model_folder.h"

namespace hone {

class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path output_dir) : output_dir_(std::move(output_dir)) {}

  std::filesystem::path path_of(int64_t step) const;
  /// Steps of the checkpoints, ascending (as numbers: 1000 comes after 999).
  std::vector<int64_t> steps() const;

  /// Writes the checkpoint of `step` atomically: fills a temporary folder, syncs it, renames it. Replaces an earlier
  /// checkpoint of the step; files that Hone did not write are carried over.
  void write(int64_t step, const FillFolder& fill) const;

  struct Kept {
    int64_t newest = 0;
    int64_t best = -1;
    std::optional<int64_t> limit = {};
    int64_t major = 0;
  };
  /// Called after checkpoint `newest` was written. First deletes the checkpoints of later steps, which remain when a
  /// run went back, and returns their names. Then deletes the oldest checkpoints until `limit` are left, but never
  /// `best` or `newest`. Multiples of `major` (0: none) are kept and do not count; nor do the weights of a best
  /// evaluation (write_best).
  std::vector<std::string> prune(const Kept& kept) const;

  /// Writes the weights of the best evaluation so far, marked as such: they cannot be resumed from.
  void write_best(int64_t step, const FillFolder& fill) const;
  /// Deletes such weights, except those of the steps in `keep`.
  void drop_best(const std::vector<int64_t>& keep) const;

  /// Called before a run continues: removes what a killed run left half written or half deleted, and restores a
  /// checkpoint that it was about to replace.
  void tidy() const;

  /// Throws UserError with the path if the name of a checkpoint up to step `last` is taken by a file or by another
  /// program's folder, which must not be replaced.
  void require_free_names(int64_t last) const;

  /// Returns the checkpoint that resume_from_checkpoint selects. "auto": the newest that is complete and has an
  /// optimizer state (optional if `weights_suffice`), never the weights of a best evaluation; nothing if there is no
  /// checkpoint. "best": the best one recorded in the newest. Anything else: a path. Checks names, sizes and small
  /// files; the rest is checked while it is read. Renames damaged checkpoints, and reports each skipped one to
  /// `notice`. UserError: there are checkpoints, but none is usable; the path does not exist or is damaged.
  using Notice = std::function<void(const std::string&)>;
  std::optional<std::filesystem::path> find(const ResumeFrom& from, bool weights_suffice, const Notice& notice) const;

  /// Renames a damaged checkpoint of this folder: checkpoint-4.damaged.
  struct PassedOver {
    std::string renamed;  ///< its new name
    std::string text;     ///< message for the user
  };
  PassedOver pass_over(const std::filesystem::path& checkpoint, const std::string& problem) const;

  /// The branch of a run that resumes from `step` of branch `branch`: a new one if there are checkpoints of later
  /// steps, so that those are not taken for newer ones.
  int64_t branch_from(int64_t step, int64_t branch) const;

 private:
  struct Candidate {
    int64_t step = 0, branch = 0;
  };
  std::vector<Candidate> candidates() const;
  /// Names of damaged checkpoints that were renamed.
  std::vector<std::string> damaged() const;
  std::optional<std::filesystem::path> find_newest(bool weights_suffice, const Notice& notice) const;
  std::filesystem::path best() const;

  std::filesystem::path output_dir_;
};

/// Describes what is wrong with a checkpoint: a file that is missing, truncated, or differs from the manifest; a state
/// that contradicts itself or the folder's name. "" if no problem is found without reading the tensors.
std::string checkpoint_problem(const std::filesystem::path& checkpoint);

/// Removes the files that Hone wrote into a checkpoint or model folder, and the folder if it is then empty.
void remove_own_files(const std::filesystem::path& folder);

}  // namespace hone
