#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "config/run_options.h"
#include "core/text/json.h"
#include "dist/control/local_process.h"
#include "report/mlflow/system_metrics.h"
#include "session/device_facts.h"
#include "train/plan/model_flops.h"
#include "train/report/gpu_monitor.h"
#include "train/report/router_watch.h"
#include "train/run/run_observer.h"
#include "train/run/tracker_packages.h"
#include "train/save/checkpoint_folder.h"

namespace hone {

namespace {

std::vector<NamedValue> dataset_losses(const LossResult& result, const std::vector<std::string>& names) {
  std::vector<NamedValue> losses;
  for (size_t i = 0; i < result.datasets.size(); ++i) {
    if (result.datasets[i].weight > 0) losses.push_back({names[i], result.datasets[i].loss, result.datasets[i].weight});
  }
  return losses;
}

/// Load balance and entropy: means over the layers, and the values of each layer if requested.
void add_routers(const StepResult& result, bool each_layer, StepMetrics& metrics) {
  const std::vector<LayerLoad> loads = layer_loads(result.routing);
  double entropy = 0;
  int64_t dead = 0;
  for (size_t layer = 0; layer < loads.size(); ++layer) {
    entropy += loads[layer].entropy;
    dead += loads[layer].dead;
    if (!each_layer) continue;
    const std::string name = fmt::format("layer_{}/", layer);
    metrics.router_layers.push_back({name + "load_max_over_mean", loads[layer].max_over_mean});
    metrics.router_layers.push_back({name + "effective_experts", loads[layer].effective_experts});
    metrics.router_layers.push_back({name + "entropy", loads[layer].entropy});
    metrics.router_layers.push_back({name + "dead_experts", static_cast<double>(loads[layer].dead)});
  }
  const auto layers = static_cast<double>(loads.size());
  metrics.router_aux_loss = result.loss.aux_loss;
  metrics.router_load_max_over_mean = mean_max_over_mean(loads);
  metrics.router_dead_experts = static_cast<double>(dead);
  metrics.router_entropy = entropy / layers;
  metrics.router_z_loss = result.routing.mean_z_loss();
  metrics.router_dropped_tokens = 0.0;
}

/// All metrics except those of sensors. `peak_flops`: of the device, for mfu.
StepMetrics step_metrics(const LoadedRun& run, const StepDone& step, std::optional<double> peak_flops) {
  const auto& [data, result, begin, data_wait] = step;
  const double seconds = seconds_since(begin);
  const RunState& state = run.state;
  StepMetrics metrics;
  metrics.step = state.step;
  metrics.epoch = data.epoch;
  metrics.loss = result.loss.loss;
  metrics.loss_with_aux = result.loss_with_aux;
  metrics.grad_norm = result.grad_norm;
  metrics.learning_rate =
      run.engine().options().optimizer.rate(run.schedule().at(state.step - 1), state.optimizer_step - 1);
  metrics.num_tokens = state.num_tokens;
  metrics.num_supervised_tokens = state.num_supervised_tokens;
  metrics.step_supervised_tokens = result.loss.supervised;
  metrics.tokens_per_second = static_cast<double>(result.loss.tokens) / seconds;
  metrics.samples_per_second = static_cast<double>(data.samples) / seconds;
  metrics.step_time = seconds;
  metrics.mean_token_accuracy = result.loss.mean_token_accuracy;
  metrics.entropy = result.loss.entropy;
  if (peak_flops) {
    const double backward = run.model().lora() ? 1 : 2;  // times forward's cost: frozen weights have no gradient
    const double flops = (1 + backward) * run.model().decoder().flops(work_of(data));
    metrics.mfu = flops / seconds / (*peak_flops * run.context().ranks.size);
  }
  metrics.allocated = static_cast<double>(run.planned.memory.total());
  metrics.max_alloc = static_cast<double>(used_memory(run.context().device()));
  metrics.host_rss = static_cast<double>(resident_bytes());
  metrics.packing_efficiency = data.packing_efficiency;
  metrics.data_wait = data_wait;
  const SampleCounts& counts = run.data().train.counts();
  metrics.dropped_samples = static_cast<double>(counts.too_long + counts.unsupervised);
  if (result.routing.layers > 0) add_routers(result, run.config().model.moe_log_expert_load, metrics);
  metrics.dataset_loss = dataset_losses(result.loss, run.data().train_names);
  return metrics;
}

ReportOptions report_options(const LoadedRun& run) {
  const RunConfig& config = run.config();
  const RunConfig::Report& report = config.report;
  const bool writes = run.context().writes();
  ReportOptions options{.output_dir = report.output_dir,
                        .report_to = writes ? report.report_to : std::vector<ReportTarget>{},
                        .logging_dir = report.logging_dir,
                        .title = report.run_name,
                        .logging_steps = report.logging_steps,
                        .logging_first_step = report.logging_first_step,
                        .metrics_port = writes ? report.metrics_port : 0,
                        .metrics_host = report.metrics_host,
                        .on_row = writes ? run.context().on_metrics : MetricsListener{},
                        .writes_state = writes};
  if (writes) {
    options.packages = tracker_packages(config);
    for (PackageOptions& package : options.packages) {
      if (run.context().config_writer.pairs) package.params = run.context().config_writer.pairs(config);
    }
  }
  MlflowOptions& mlflow = options.mlflow;
  mlflow.tracking_uri = report.mlflow_tracking_uri;
  mlflow.experiment_name = report.mlflow_experiment_name;
  mlflow.run_id = report.mlflow_run_id;
  if (run.context().config_writer.pairs) mlflow.params = run.context().config_writer.pairs(config);
  std::string data;
  for (const DatasetConfig& entry : config.data.datasets) data += (data.empty() ? "" : ", ") + entry.path;
  for (const auto& [name, value] : {std::pair("model", config.model.model_name_or_path), std::pair("dataset", data)}) {
    if (!report.mlflow_tags.contains(name)) mlflow.tags.emplace_back(name, mlflow_value(value));
  }
  for (const auto& [name, value] : report.mlflow_tags->items()) {
    mlflow.tags.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return options;
}

double planned_epochs(const LoadedRun& run) {
  if (!run.config().schedule.max_steps) return run.config().schedule.num_train_epochs;
  return static_cast<double>(run.schedule().total_steps) /
         static_cast<double>(std::max<int64_t>(run.described().loader->steps_in_epoch(0), 1));
}

/// System metrics of the run's hosts, if MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING requests them.
class SystemWatch {
 public:
  explicit SystemWatch(RankGroup& group) : group_(group) {}

  /// Collective, after a step: a sample of every host whenever the first rank's interval has passed. In the first call
  /// the ranks agree on whether samples are wanted.
  std::vector<Metric> sample() {
    const RunContext& context = group_.context();
    if (!asked_) {
      asked_ = true;
      wanted_ = group_.on_any(context.writes() && system_metrics_wanted());
      if (wanted_ && context.ranks.local_rank == 0) host_.emplace();
      return {};  // samples begin with the next step: CPU load is measured between samples
    }
    if (!wanted_) return {};
    const bool is_time = !last_ || seconds_since(*last_) >= system_metrics_interval();
    if (!group_.on_any(context.writes() && is_time)) return {};
    last_ = WallClock::now();
    return system_metrics_of(group_.exchange(host_ ? packed_metrics(host_name(), host_->sample()) : ""));
  }

 private:
  RankGroup& group_;
  bool asked_ = false, wanted_ = false;
  std::optional<SystemMetrics> host_;  // on the first rank of a host
  std::optional<WallClock::time_point> last_;
};

class RunReports : public RunObserver {
 public:
  /// Measures a CPU's FLOP/s, so its threads should be idle.
  explicit RunReports(const LoadedRun& run)
      : run_(run),
        peak_flops_(peak_flops(run.context().device(), run.config().model.dtype, run.context().pool)),
        gpu_(run.context().device()),
        mlflow_(std::ranges::count(run.config().report.report_to, ReportTarget::kMlflow) > 0),
        machines_(run.group()),
        reporter_(report_options(run), run.context().logger) {
    const RunConfig& config = run.config();
    const RunState& state = run.state;
    reporter_.on_start({.total_steps = run.schedule().total_steps,
                        .num_train_epochs = planned_epochs(run),
                        .resumed_step = state.step,
                        .resumed = run.resumed,
                        .evaluation_due = state.evaluation_due,
                        .train_batch_size = config.schedule.per_device_train_batch_size,
                        .eval_steps = *config.eval.eval_steps,
                        .save_steps = *config.checkpoint.save_steps});
    if (state.best_step < 0) return;
    const std::filesystem::path best = CheckpointFolder(config.report.output_dir).path_of(state.best_step);
    reporter_.set_best(
        {state.best_metric, state.best_step, std::filesystem::exists(best) ? best.string() : std::string()});
  }

  void step_done(const StepDone& step) override {
    StepMetrics metrics = step_metrics(run_, step, peak_flops_);
    const GpuReading gpu = gpu_.latest();
    metrics.gpu_utilization = gpu.utilization;
    metrics.gpu_power = gpu.power;
    metrics.gpu_temperature = gpu.temperature;
    reporter_.on_step(std::move(metrics));
    if (!mlflow_) return;
    if (const std::vector<Metric> sample = machines_.sample(); !sample.empty()) {
      reporter_.on_system(run_.state.step, sample);
    }
  }

  void evaluating(const LossResult& result, EvalMetrics& metrics) override {
    metrics.dataset_loss = dataset_losses(result, run_.data().eval_names);
  }
  void evaluated(const EvalMetrics& metrics) override { reporter_.on_eval(metrics); }
  void best_found(const BestModel& best) override { reporter_.set_best(best); }
  void saving(const std::filesystem::path& folder, RunState&) override {
    write_trainer_state(reporter_.state(), folder.string());
  }
  void saved(const SaveReport& save) override { reporter_.on_save(save); }
  void ended(const RunEnd& end) override { reporter_.on_end(end); }

 private:
  const LoadedRun& run_;
  std::optional<double> peak_flops_;  // for mfu
  GpuMonitor gpu_;
  bool mlflow_;
  SystemWatch machines_;
  Reporter reporter_;
};

}  // namespace

std::unique_ptr<RunObserver> run_reports(const LoadedRun& run) {
  run.context().stream.synchronize();
  return std::make_unique<RunReports>(run);
}

}  // namespace hone
