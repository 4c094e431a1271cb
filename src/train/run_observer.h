// RunObserver: what is told of a running run, and has a part of its own in it. Each has its own state and file, and
// none knows another. Every rank has the same ones, but for those that only write.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "report/reporter.h"
#include "train/loaded_run.h"
#include "train/wall_clock.h"

namespace hone {

/// A step that the device has finished.
struct StepDone {
  const StepData& data;
  const StepResult& result;
  WallClock::time_point begin;  ///< when the host began it
};

class RunObserver {
 public:
  virtual ~RunObserver() = default;

  virtual void step_begins() {}
  /// The run's state is still that before the step; whoever throws refuses it.
  virtual void step_computed(const StepDone&) {}
  /// The run's state is that after the step.
  virtual void step_done(const StepDone&) {}

  /// The loss has been measured: an observer adds to the metrics what it measures. Ranks may work together.
  virtual void evaluating(const LossResult&, EvalMetrics&) {}
  virtual void evaluated(const EvalMetrics&) {}
  /// The last evaluation is the best so far. `checkpoint` is where its weights will be, if they are saved.
  virtual void best_found(const BestModel&) {}

  /// On the rank that writes a checkpoint, or the weights of the best evaluation: an observer writes files of its own
  /// into `folder`, and puts into `state` what it goes on from.
  virtual void saving(const std::filesystem::path& /*folder*/, RunState& /*state*/) {}
  virtual void saved(const SaveReport&) {}

  /// No step follows: after the last one, or after ended() where a signal stops the run.
  virtual void loop_left() {}
  /// The model has been saved, or a signal has stopped the run. The last observer is told first.
  virtual void ended(const RunEnd&) {}
};

using RunObservers = std::vector<std::unique_ptr<RunObserver>>;

/// Calls an event of all, in their order.
template <class... Parameters, class... Arguments>
void tell(const RunObservers& observers, void (RunObserver::*event)(Parameters...), Arguments&&... arguments) {
  for (const auto& observer : observers) (observer.get()->*event)(arguments...);
}

/// The observers of a run, in the order in which they are told. The run outlives them.
///
/// profile: the time line of some steps in profile.json, the counters of their stages in the log and in
/// profile-stages.json; null where none is asked for, or on ranks that do not write.
std::unique_ptr<RunObserver> run_profile(const LoadedRun& run);
/// Refuses a step whose loss or gradients are not finite, with Error(kNumbersLost) that names its samples; with
/// nan_policy: skip it warns, until too many in a row are lost.
std::unique_ptr<RunObserver> number_guard(const LoadedRun& run);
/// training_info.json: what a run was, in one file beside its model; null on ranks that do not write.
std::unique_ptr<RunObserver> training_info(const LoadedRun& run);
/// generate_samples: answers to a few prompts of the evaluation data, in the log and in generations.jsonl; null where
/// none are asked for, or where this rank has no part in them.
std::unique_ptr<RunObserver> sample_answers(const LoadedRun& run);
/// Everything a Reporter tells, and how the machines are doing for MLflow.
std::unique_ptr<RunObserver> run_reports(const LoadedRun& run);
/// Alarms of a RouterWatch, which goes on from the run's state, and the map of the experts' load.
std::unique_ptr<RunObserver> router_reports(const LoadedRun& run);

}  // namespace hone
