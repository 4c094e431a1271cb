#include "train/run/running_run.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "core/stream/kernel_notes.h"
#include "core/stream/profiler.h"
#include "train/run/best_metric.h"
#include "train/step/step_scope.h"

namespace hone {

namespace {

RunObservers observers_of(const LoadedRun& run) {
  RunObservers observers;
  for (const auto make :
       {run_profile, number_guard, training_info, sample_answers, run_reports, live_page, router_reports}) {
    if (auto observer = make(run)) observers.push_back(std::move(observer));
  }
  return observers;
}

}  // namespace

RunningRun::RunningRun(LoadedRun& run, RunFolder* folder)
    : run_(run), observers_(observers_of(run)), saver_(run, folder, observers_), data_wait_(run.context().stream) {}

ExitCode RunningRun::run(const StopSignal& stop) {
  const RunConfig::Eval& options = run_.config().eval;
  if (options.eval_on_start && run_.state.step == 0) evaluate();
  try {
    const ExitCode code = train_steps(stop);
    tell(observers_, &RunObserver::loop_left);
    if (code != ExitCode::kOk) return code;
  } catch (const Error&) {
    saver_.save_as_survivor();
    throw;
  }
  if (const GraphCache::Counts& counts = run_.engine().graph_counts(); counts.replayed > 0) {
    run_.logger().info("cuda_graphs: {} of {} micro-batches and updates were replayed", counts.replayed,
                       counts.called + counts.recorded + counts.replayed);
  }
  if (options.load_best_model_at_end) saver_.restore_best();
  saver_.save_final_model();
  end({.reason = stops_early() ? fmt::format("no better {} in {} evaluations", options.metric_for_best_model,
                                             run_.state.evals_without_improvement)
                               : ""});
  return ExitCode::kOk;
}

ExitCode RunningRun::train_steps(const StopSignal& stop) {
  if (run_.state.evaluation_due && end_step(stop)) return ExitCode::kResumable;
  while (!is_over()) {
    stop.at_step(run_.state.step + 1);
    train_step();
    if (end_step(stop)) return ExitCode::kResumable;
  }
  return ExitCode::kOk;
}

bool RunningRun::end_step(const StopSignal& stop) {
  const bool better = run_.state.evaluation_due && evaluate();
  const bool last = is_over();
  const bool stopped = run_.group().on_any(stop.requested()) && !last;
  saver_.after_step(last, stopped, better);
  if (!stopped) return false;
  const std::string by = stop.requested() ? stop.name() : "a signal to another rank";
  end({.finished = false, .reason = by, .killed = true});
  run_.logger().info("stopped by {}: resume with resume=auto", by);
  return true;
}

void RunningRun::train_step() {
  const WallClock::time_point begin = WallClock::now();
  RunState& state = run_.state;
  run_.group().at_step(state.step + 1);
  const StepData data = take_data();
  tell(observers_, &RunObserver::step_begins);
  const StepResult result = compute_step(data);
  const StepDone done{data, result, begin, data_wait_.take()};
  tell(observers_, &RunObserver::step_computed, done);
  ++state.step;
  ++(result.nonfinite ? skipped_ : state.optimizer_step);
  state.num_tokens += result.loss.tokens;
  state.num_supervised_tokens += result.loss.supervised;
  state.num_samples += data.samples;
  state.epoch = data.epoch;
  state.evaluation_due = evaluates_now();
  tell(observers_, &RunObserver::step_done, done);
}

/// The first step also logs which kernels it used.
StepResult RunningRun::compute_step(const StepData& data) {
  const RunState& state = run_.state;
  Engine& engine = run_.engine();
  std::optional<KernelNotes> notes;
  if (!kernels_reported_) notes.emplace(run_.context().stream);
  StepResult result;
  {
    const StepScope scope(run_.context().stream, engine.host_stream(), state.step + 1);
    const OptimizerStep optimizer_step{run_.schedule().at(state.step), state.optimizer_step};
    data_wait_.begin();
    engine.accumulate(data, state.step, optimizer_step);
    engine.start_update(optimizer_step);
    const int64_t next = state.step + 1;
    if (next < run_.schedule().total_steps) next_data_ = data_wait_.prepare_beside([&] { return data_of(next); });
    result = engine.finish_update();
  }
  if (notes) run_.logger().info("kernels of {}", notes->text());
  kernels_reported_ = true;
  return result;
}

StepData RunningRun::data_of(int64_t step) { return run_.described().loader->step(step - run_.state.first_data_step); }

StepData RunningRun::take_data() {
  if (!next_data_) return data_wait_.prepare_first([&] { return data_of(run_.state.step); });
  StepData data = std::move(*next_data_);
  next_data_.reset();
  return data;
}

bool RunningRun::evaluates_now() const {
  const RunConfig::Eval& options = run_.config().eval;
  return run_.evaluates() && (is_over() || run_.is_due(options.eval_strategy, options.eval_steps));
}

bool RunningRun::evaluate() {
  const WallClock::time_point begin = WallClock::now();
  const RunConfig::Eval& options = run_.config().eval;
  const std::vector<MicroBatch>& batches = run_.described().eval_batches;
  RunState& state = run_.state;
  run_.logger().console().set_progress({.label = "eval", .done = 0, .total = static_cast<int64_t>(batches.size())});
  const LossResult result = run_.engine().evaluate(batches);
  EvalMetrics metrics;
  metrics.step = state.step;
  metrics.epoch = state.epoch;
  metrics.eval_loss = result.loss;
  metrics.eval_perplexity = std::exp(result.loss);
  metrics.eval_mean_token_accuracy = result.mean_token_accuracy;
  tell(observers_, &RunObserver::evaluating, result, metrics);
  metrics.seconds = seconds_since(begin);
  const ModelMetric metric = options.metric_for_best_model;
  const double value = metric == ModelMetric::kPerplexity ? metrics.eval_perplexity
                       : metric == ModelMetric::kLoss     ? metrics.eval_loss
                                                          : result.mean_token_accuracy;
  const BestMetric judge{options.greater_is_better, options.early_stopping_threshold};
  const std::optional<double> best = state.best_step < 0 ? std::nullopt : std::optional(state.best_metric);
  metrics.is_best = judge.better(value, best);
  const bool improves = judge.improves(value, best);
  tell(observers_, &RunObserver::evaluated, metrics);
  run_.group().on_any(false);  // the first rank has recorded it: until then a survivor's checkpoint says that it is due
  state.evaluation_due = false;
  const Json measured = {{"step", state.step}, {"eval_loss", result.loss}};
  if (!state.evaluations.contains("first")) state.evaluations["first"] = measured;
  if (metrics.is_best && state.step > 0) state.evaluations["best"] = measured;
  state.evaluations["last"] = measured;
  if (state.step > 0) {
    state.evals_without_improvement = improves ? 0 : state.evals_without_improvement + 1;
    if (metrics.is_best) {
      state.best_metric = value;
      state.best_step = state.step;
    }
  }
  return metrics.is_best && state.step > 0;
}

bool RunningRun::stops_early() const {
  const int64_t patience = run_.config().eval.early_stopping_patience;
  return patience > 0 && run_.state.evals_without_improvement >= patience;
}

bool RunningRun::is_over() const { return run_.state.step >= run_.schedule().total_steps || stops_early(); }

void RunningRun::end(RunEnd end) const {
  end.skipped = skipped_;
  for (auto observer = observers_.rbegin(); observer != observers_.rend(); ++observer) (*observer)->ended(end);
}

}  // namespace hone
