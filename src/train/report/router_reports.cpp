#include <algorithm>
#include <optional>

#include "core/text/json.h"
#include "train/report/router_watch.h"
#include "train/report/run_rows.h"
#include "train/run/run_observer.h"

namespace hone {

namespace {

RouterWatchOptions watch_options(const LoadedRun& run) {
  const auto& parameters = run.store().all();
  return {.experts_per_token = run.model().decoder().config().moe.num_experts_per_tok,
          .trains_router =
              std::any_of(parameters.begin(), parameters.end(),
                          [](const Parameter& p) { return p.spec().kind == ParameterKind::kRouter && p.trainable(); }),
          .aux_loss_coef = run.config().model.router_aux_loss_coef.value_or(0)};
}

class RouterReports : public RunObserver {
 public:
  explicit RouterReports(const LoadedRun& run)
      : logger_(run.logger()),
        logs_balance_(run.config().model.moe_log_expert_load),
        step_(run.state.step),
        row_interval_((run.schedule().total_steps + kRows - 1) / kRows),
        watch_(watch_options(run)) {
    const DecoderConfig& decoder = run.model().decoder().config();
    watch_.restore(run.state.router_watch, decoder.num_moe_layers(), decoder.moe.num_experts);
    if (decoder.num_moe_layers() > 0 && run.context().writes()) rows_.emplace(open_run_rows(run, "expert_load.jsonl"));
  }

  void step_computed(const StepDone& step) override {
    ++step_;
    if (step.result.nonfinite) return;
    for (const std::string& alarm : watch_.add(step.result.routing, step.result.loss.loss)) {
      logger_.warning("{}", alarm);
    }
    if (step_ == 1) log_balance();
    if (step_ == 1 || step_ % row_interval_ == 0) write_row();
  }

  void evaluated(const EvalMetrics& metrics) override {
    if (metrics.step > 0) log_balance();
  }

  void saving(const std::filesystem::path&, RunState& state) override { state.router_watch = watch_.state(); }

  void ended(const RunEnd& end) override {
    if (end.finished) log_balance();
    write_row();
  }

 private:
  static constexpr int64_t kRows = 32;  // a run has, beside those of log_balance()

  /// Writes the load of all experts, at most once per step.
  void write_row() {
    if (!rows_ || watch_.empty() || written_ == step_) return;
    written_ = step_;
    rows_->append(Json{{"step", step_}, {"layers", watch_.shares()}});
  }

  /// Logs the balance of the routers and writes its numbers, at most once per step, if requested.
  void log_balance() {
    if (!logs_balance_ || watch_.empty() || logged_ == step_) return;
    logged_ = step_;
    write_row();
    logger_.info("{}", watch_.balance());
  }

  Logger& logger_;
  bool logs_balance_;
  int64_t step_;
  int64_t row_interval_;  // steps from one row to the next
  int64_t logged_ = -1, written_ = -1;
  RouterWatch watch_;
  std::optional<MetricsFile> rows_;  // set on the rank that writes
};

}  // namespace

std::unique_ptr<RunObserver> router_reports(const LoadedRun& run) { return std::make_unique<RouterReports>(run); }

}  // namespace hone
