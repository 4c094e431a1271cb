// The last phase of a run: the loop over its steps, with evaluations and saves in between. It advances the loaded run
// and calls its observers.
#pragma once

#include <optional>

#include "core/base/error.h"
#include "train/run/data_wait.h"
#include "train/run/run_saver.h"
#include "train/run/stop_signal.h"

namespace hone {

class RunningRun {
 public:
  /// Creates the observers, which open their files. `folder` is null on ranks that do not write. All arguments must
  /// outlive this.
  RunningRun(LoadedRun& run, RunFolder* folder);
  RunningRun(const RunningRun&) = delete;
  RunningRun& operator=(const RunningRun&) = delete;

  /// Trains, evaluates and saves. kResumable if `stop` ended it after a checkpoint was written. Throws
  /// Error(kNumbersLost) where a loss or gradient is not finite and nan_policy is stop.
  ExitCode run(const StopSignal& stop);

 private:
  ExitCode train_steps(const StopSignal& stop);
  /// Evaluates and saves what is due after a step. Returns whether the run was stopped.
  bool end_step(const StopSignal& stop);
  void train_step();
  StepResult compute_step(const StepData& data);
  StepData data_of(int64_t step);
  StepData take_data();
  bool evaluates_now() const;
  /// Returns whether it is the best so far.
  bool evaluate();
  bool stops_early() const;
  bool is_over() const;
  void end(RunEnd end) const;

  LoadedRun& run_;
  RunObservers observers_;
  RunSaver saver_;
  std::optional<StepData> next_data_;  // the step after this one, prepared while the device works
  DataWait data_wait_;
  bool kernels_reported_ = false;
  int64_t skipped_ = 0;  // steps whose numbers were not finite
};

}  // namespace hone
