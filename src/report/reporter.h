// Reporter: the object that the trainer calls to report a run, and its sinks.
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
#include "report/report_target.h"
#include "report/tracker/package_store.h"

namespace hone {

struct LineLayout;

struct ReportOptions {
  std::string output_dir;
  std::vector<ReportTarget> report_to = {ReportTarget::kJsonl, ReportTarget::kTensorboard};
  std::string logging_dir = {};  ///< where the event files are; empty: output_dir/runs
  std::string run_name = {};     ///< a subfolder of logging_dir; empty: none
  std::string title = {};        ///< the run's name for trackers
  int64_t logging_steps = 1;     ///< number of steps per reported line (see StepWindow)
  bool logging_first_step = false;
  MlflowOptions mlflow = {};                  ///< used if report_to contains kMlflow
  std::vector<PackageOptions> packages = {};  ///< for kWandb and kTrackio: each is used
  int64_t metrics_port = 0;                   ///< a MetricsServer's; 0: none
  std::string metrics_host = "127.0.0.1";
  std::function<void(const JsonValue& row)> on_row = {};  ///< told of each row of metrics.jsonl
  bool writes_state = true;  ///< whether to write trainer_state.json; false: another process writes it
};

struct RunStart {
  int64_t total_steps = 0;
  double num_train_epochs = 0;
  int64_t resumed_step = 0;  ///< steps already done by the resumed run
  bool resumed = false;
  bool evaluation_due = false;   ///< after resumed_step
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
  bool killed = false;      ///< the reason was a signal
  int64_t skipped = 0;      ///< steps of this start that changed nothing, since their numbers were not finite
};

/// Writes to the configured sinks: metrics.jsonl and trainer_state.json in output_dir, TensorBoard event files,
/// trackers, the console and, through the logger, run.log; serves the last metrics over HTTP. Errors: if metrics.jsonl
/// or trainer_state.json cannot be written, it throws UserError, since the record of the run would have a gap. If
/// TensorBoard cannot be written, or the port is not available, it warns once and switches that sink off. Trackers
/// never stop a run (TrackerSender).
class Reporter {
 public:
  /// `logger` and its console must outlive the reporter.
  Reporter(ReportOptions options, Logger& logger);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  /// Opens the files. A resumed run continues them: removes the records of steps after resumed_step.
  void on_start(const RunStart& start);

  /// Call after every optimizer step. Sets `efficiency`, and `eta` if it is unset.
  void on_step(StepMetrics metrics);

  /// Updates the progress bar during work other than steps (evaluating, tokenizing).
  void on_progress(Progress progress) { logger_.console().set_progress(std::move(progress)); }

  /// Reports system metrics (report/mlflow/system_metrics.h): only to MLflow.
  void on_system(int64_t step, const std::vector<Metric>& metrics);

  void on_eval(const EvalMetrics& metrics);
  void on_save(const SaveReport& save);

  /// Sets the best evaluation so far, for trainer_state.json; also after a resume.
  void set_best(BestModel best) { state_.best = std::move(best); }

  /// Writes the remaining metrics, the final trainer_state.json and a summary.
  void on_end(const RunEnd& end);

  /// The present contents of trainer_state.json; for the copy in a checkpoint see write_trainer_state.
  const TrainerState& state() const { return state_; }

 private:
  struct Sinks;

  void open_tensorboard(const RunStart& start);
  void open_mlflow(bool resumed);
  void open_server();
  void open_packages(bool resumed);
  void tell_notices();
  void end_trackers(const RunEnd& end);
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
