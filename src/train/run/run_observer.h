// RunObserver: receives the events of a running run, and may take part in saving. Each has its own state and files,
// independent of the others. All ranks have the same observers, except those that only write.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "report/reporter.h"
#include "train/run/loaded_run.h"
#include "train/run/wall_clock.h"

namespace hone {

/// A step that the device has finished.
struct StepDone {
  const StepData& data;
  const StepResult& result;
  WallClock::time_point begin;  ///< when the host began it
  double data_wait = 0;         ///< seconds in which the device waited for micro-batches (DataWait)
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;

  virtual void step_begins() {}
  /// The run's state is still that before the step; throwing rejects the step.
  virtual void step_computed(const StepDone&) {}
  /// The run's state is that after the step.
  virtual void step_done(const StepDone&) {}

  /// The loss has been measured: an observer adds its own metrics. May be collective.
  virtual void evaluating(const LossResult&, EvalMetrics&) {}
  virtual void evaluated(const EvalMetrics&) {}
  /// The last evaluation is the best so far. `checkpoint` is the path of its weights, if they are saved.
  virtual void best_found(const BestModel&) {}

  /// Called on the rank that writes a checkpoint or the weights of the best evaluation: an observer writes its own
  /// files into `folder`, and adds to `state` what it needs to resume.
  virtual void saving(const std::filesystem::path& /*folder*/, RunState& /*state*/) {}
  virtual void saved(const SaveReport&) {}

  /// No step follows. Called after the last step, or after ended() if a signal stops the run.
  virtual void loop_left() {}
  /// The model has been saved, or a signal has stopped the run. Observers are called in reverse order.
  virtual void ended(const RunEnd&) {}
};

using RunObservers = std::vector<std::unique_ptr<RunObserver>>;

/// Calls an event of all observers in order.
template <class... Parameters, class... Arguments>
void tell(const RunObservers& observers, void (RunObserver::*event)(Parameters...), Arguments&&... arguments) {
  for (const auto& observer : observers) (observer.get()->*event)(arguments...);
}

/// The observers of a run, in the order in which they are called. The run must outlive them.
///
/// profile: the time line of some steps in profile.json, the counters of their stages in the log and in
/// profile-stages.json, and those of experts on the CPU in profile-host.json and profile-host-stages.json; null if not
/// requested, or on ranks that do not write.
std::unique_ptr<RunObserver> run_profile(const LoadedRun& run);
/// Rejects a step whose loss or gradients are not finite: throws Error(kNumbersLost) with its samples; with nan_policy:
/// skip it warns until too many consecutive steps are skipped.
std::unique_ptr<RunObserver> number_guard(const LoadedRun& run);
/// training_info.json: a summary of the run next to its model; null on ranks that do not write.
std::unique_ptr<RunObserver> training_info(const LoadedRun& run);
/// generate_samples: answers to a few prompts of the evaluation data, in the log and in generations.jsonl; null if not
/// requested, or if this rank takes no part.
std::unique_ptr<RunObserver> sample_answers(const LoadedRun& run);
/// Metrics and events for Reporters, and system metrics for MLflow.
std::unique_ptr<RunObserver> run_reports(const LoadedRun& run);
/// status_port: the page of the run, served while it runs; null if not requested, or on ranks that do not write.
std::unique_ptr<RunObserver> live_page(const LoadedRun& run);
/// Alarms of a RouterWatch, whose state is saved with the run, and the load of experts: expert_load.jsonl, and lines of
/// the log.
std::unique_ptr<RunObserver> router_reports(const LoadedRun& run);

}  // namespace hone
