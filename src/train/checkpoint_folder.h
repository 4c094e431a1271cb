// The checkpoints of an output folder: checkpoint-<step>, newest by number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace hone {

class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path output_dir) : output_dir_(std::move(output_dir)) {}

  std::filesystem::path path_of(int64_t step) const;
  /// Steps of the complete checkpoints, ascending (as numbers: 1000 comes after 999).
  std::vector<int64_t> steps() const;
  /// After checkpoint `newest` was written. Deletes those of later steps, which the run left behind when it went back,
  /// then the oldest so that `limit` stay; never `best`, never `newest`. Multiples of `major` (0: none) stay and do not
  /// count.
  struct Kept {
    int64_t newest = 0;
    int64_t best = -1;
    std::optional<int64_t> limit = {};
    int64_t major = 0;
  };
  void prune(const Kept& kept) const;

  /// Before a run goes on: removes what one that was killed left half written or half deleted, and puts back a
  /// checkpoint that it was about to replace.
  void tidy() const;

  /// UserError if the folder is not empty and neither `resume` nor `overwrite` is set. Changes nothing.
  void check(bool resume, bool overwrite) const;
  /// As check, then makes the folder. UserError if it is not writable;
  /// `overwrite` deletes what an earlier run wrote.
  void prepare(bool resume, bool overwrite) const;

  /// What resume_from_checkpoint names: "auto" is the newest one (nothing if there is none); "best" the best that the
  /// newest knows of; else a path. UserError if it is not there.
  std::optional<std::filesystem::path> find(const std::string& resume_from_checkpoint) const;

 private:
  void remove(int64_t step) const;
  std::filesystem::path best() const;

  std::filesystem::path output_dir_;
};

}  // namespace hone
