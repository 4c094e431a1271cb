// The output folder of a run: one run writes there at a time, files that the run reads are never overwritten, and
// results of an earlier run are deleted only once complete new results exist.
//
// With overwrite_output_dir the earlier results are moved to OUTPUT/replaced.hone-XXXXXXXX.old from just before the
// first step until the first checkpoint or the final model of the new run is complete. A run that ends before that
// moves them back; after a kill the next start does.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "core/files/folder_lock.h"
#include "core/files/input_files.h"
#include "report/log.h"

namespace hone {

/// The inputs of a run: model, adapter, tokenizer, data, template, token cache. UserError if the model does not exist.
InputFiles run_inputs(const RunConfig& config);

/// UserError if the run would overwrite, replace or remove one of its inputs. Changes nothing.
void check_inputs_stay(const RunConfig& config);

/// UserError if the output folder is in use by an earlier run and the configuration neither resumes nor overwrites, or
/// if it holds a model that Hone did not write. Leftovers of a refused run (run.log, logs/, the lock) are ignored.
/// Changes nothing.
void check_output_dir(const RunConfig& config);

class RunFolder {
 public:
  /// Creates the folder, takes its lock, and finishes or undoes what a killed run left. UserError if the folder cannot
  /// be written or another run holds its lock.
  RunFolder(const std::filesystem::path& output_dir, Logger& logger);
  /// Moves earlier results back unless keep_new() was called.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  /// UserError unless `bytes` are free for the first checkpoint in addition to the earlier results.
  void require_space(int64_t bytes, bool overwrite) const;

  /// Moves earlier results aside, only files that Hone writes. Logs their names.
  void set_aside();
  /// Deletes what was set aside: a checkpoint or the final model of this run is complete.
  void keep_new();

 private:
  void recover();

  const std::filesystem::path output_dir_;
  Logger& logger_;
  std::unique_ptr<FolderLock> lock_;
  std::filesystem::path aside_;  // empty: nothing is set aside
};

}  // namespace hone
