// Everything a run tells: one object that the trainer calls, and the sinks behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "report/console.h"
#include "report/log.h"
#include "report/metrics.h"
#include "report/metrics_file.h"
#include "report/mlflow/mlflow_store.h"

namespace hone {

struct LineLayout;

struct ReportOptions {
  std::string output_dir;
  std::vector<std::string> report_to = {"jsonl", "tensorboard"};  ///< these two, mlflow, or "none"
  std::string logging_dir = {};                                   ///< of the event files; empty: output_dir/runs
  std::string run_name = {};  ///< a folder of its own below logging_dir; empty: none
  std::string title = {};     ///< the run's name for trackers
  int64_t logging_steps = 1;  ///< steps summarised by one line (see StepWindow)
  bool logging_first_step = false;
  MlflowOptions mlflow = {};  ///< used where report_to names mlflow
  int64_t metrics_port = 0;   ///< of a MetricsServer; 0: none
  std::string metrics_host = "127.0.0.1";
  bool writes_state = true;  ///< trainer_state.json; false: another process does
};

struct RunStart {
  int64_t total_steps = 0;
  double num_train_epochs = 0;
  int64_t resumed_step = 0;  ///< steps already done by the run that is resumed
  bool resumed = false;
  int64_t train_batch_size = 0;  ///< per_device_train_batch_size
  int64_t eval_steps = 0, save_steps = 0;
};

struct SaveReport {
  std::string path;  ///< the checkpoint's folder
  int64_t step = 0;
  double seconds = 0;
  uint64_t bytes = 0;  ///< 0: not shown
};

struct RunEnd {
  bool finished = true;     ///< false: stopped before its last step
  std::string reason = {};  ///< why it stopped early: "no better evaluation for 3 times", "SIGTERM"
  bool killed = false;      ///< that was a signal
};

/// Writes to the sinks that the options name: metrics.jsonl and trainer_state.json in output_dir, TensorBoard event
/// files, MLflow, the console and, through the logger, run.log; and serves the last numbers over HTTP.
/// Errors: metrics.jsonl and trainer_state.json that cannot be written end the run (UserError), since the record of
/// the run would have a hole; TensorBoard that cannot be written gives one warning and is switched off, as does a port
/// that cannot be had; MLflow never stops a run (MlflowSender).
class Reporter {
 public:
  /// `logger` and its console outlive the reporter. An unknown name in report_to: UserError.
  Reporter(ReportOptions options, Logger& logger);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  /// Opens the files. A resumed run continues them: what was written for steps after resumed_step is removed.
  void on_start(const RunStart& start);

  /// After every optimizer step. Fills in `efficiency`, and `eta` when it is not set.
  void on_step(StepMetrics metrics);

  /// While something else than a step goes on (evaluating, tokenizing): only the progress bar.
  void on_progress(Progress progress) { logger_.console().set_progress(std::move(progress)); }

  /// Of the machines (report/mlflow/system_metrics.h): for MLflow alone.
  void on_system(int64_t step, const std::vector<Metric>& metrics);

  void on_eval(const EvalMetrics& metrics);
  void on_save(const SaveReport& save);

  /// The best evaluation so far, for trainer_state.json; also after a resume.
  void set_best(BestModel best) { state_.best = std::move(best); }

  /// Writes what is still collected, the final trainer_state.json and a summary.
  void on_end(const RunEnd& end);

  /// What trainer_state.json says now; for the copy inside a checkpoint see write_trainer_state.
  const TrainerState& state() const { return state_; }

 private:
  struct Sinks;

  void open_tensorboard(const RunStart& start);
  void open_mlflow(bool resumed);
  void open_server();
  void tell_mlflow_notices();
  void end_mlflow(const RunEnd& end);
  void publish(const char* state);
  void emit(const StepMetrics& metrics);
  void write(int64_t step, const std::vector<Metric>& metrics);
  void show(const std::function<std::string(const LineLayout&)>& line);
  void show_progress(const StepMetrics& metrics);
  double seconds_left(int64_t step) const;
  void summarise(const RunEnd& end);

  ReportOptions options_;
  Logger& logger_;
  RunStart start_;
  TrainerState state_;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace hone
