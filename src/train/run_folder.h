// The output folder of a run, from the moment it is taken to the end: one run writes there at a time, nothing that the
// run reads is written over, and what an earlier run left is replaced only by results that stand.
//
// With overwrite_output_dir the earlier results wait in OUTPUT/replaced.hone-XXXXXXXX.old, from just before the first
// step until the first checkpoint or the final model of the new run is whole. A run that ends before that puts them
// back; one that is killed leaves that to the next start.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/folder_lock.h"
#include "core/input_files.h"
#include "report/log.h"
#include "session/run_config.h"

namespace hone {

/// What a run reads: model, adapter, tokenizer, data, template, token cache. UserError if the model is not there.
InputFiles run_inputs(const RunConfig& config);

/// UserError if the run would write over, replace or remove what it reads. Changes nothing.
void check_inputs_stay(const RunConfig& config);

/// UserError if the output folder is in use by an earlier run and the configuration neither resumes nor overwrites, or
/// holds a model that no run of Hone wrote. What only a refused run left (run.log, logs/, the lock) is nothing. Changes
/// nothing.
void check_output_dir(const RunConfig& config);

class RunFolder {
 public:
  /// Makes the folder, takes its lock, finishes or puts back what a killed run left. UserError if it cannot be written
  /// or another run writes there.
  RunFolder(const std::filesystem::path& output_dir, Logger& logger);
  /// Puts earlier results back unless keep_new() was called.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  /// UserError unless `bytes` are free for the first checkpoint, beside the earlier results.
  void require_space(int64_t bytes, bool overwrite) const;

  /// Sets earlier results aside: files that Hone writes, and nothing else. The log names them.
  void set_aside();
  /// A checkpoint or the final model of this run stands: what was set aside goes.
  void keep_new();

 private:
  void recover();

  const std::filesystem::path output_dir_;
  Logger& logger_;
  std::unique_ptr<FolderLock> lock_;
  std::filesystem::path aside_;  // empty: nothing waits
};

}  // namespace hone
