#include "report/reporter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <numeric>
#include <system_error>

#include "core/base/contains.h"
#include "core/base/error.h"
#include "core/base/program.h"
#include "core/text/json.h"
#include "report/humanise.h"
#include "report/metrics_file.h"
#include "report/metrics_server.h"
#include "report/step_line.h"
#include "report/tensorboard.h"
#include "report/terminal.h"
#include "report/tracker/tracker_sender.h"

namespace hone {
namespace {

// run.log has every field of a step, whatever the width of the terminal.
constexpr int kFileWidth = 200;

// Converts a run name from the user to one folder name, never a path.
std::string folder_name(std::string name) {
  for (char& c : name) {
    if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20) c = '_';
  }
  return name == "." || name == ".." ? std::string(name.size(), '_') : name;
}

}  // namespace

/// The mean loss of a run's first and of its last steps, the same number of each, of those with a finite loss.
class LossEnds {
 public:
  void add(double loss) {
    if (!std::isfinite(loss)) return;  // a skipped step: summarise() says how many
    ++steps_;
    if (first_.size() < kMost) first_.push_back(loss);
    if (last_.size() == kMost) last_.erase(last_.begin());
    last_.push_back(loss);
  }
  /// "loss 2.5 → 1.5 (means of 10 steps)"; "" before the first step.
  std::string text() const {
    if (steps_ == 0) return "";
    const size_t count = std::clamp<size_t>(steps_ / 2, 1, kMost);
    const auto mean = [&](auto begin) {
      return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(count), 0.0) / static_cast<double>(count);
    };
    return fmt::format("loss {:.4f} → {:.4f}{}", mean(first_.begin()),
                       mean(last_.end() - static_cast<std::ptrdiff_t>(count)),
                       count > 1 ? fmt::format(" (means of {} steps)", count) : "");
  }

 private:
  static constexpr size_t kMost = 10;
  size_t steps_ = 0;
  std::vector<double> first_, last_;
};

struct Reporter::Sinks {
  std::optional<MetricsFile> metrics_file;
  std::optional<TensorBoardWriter> tensorboard;
  struct Tracker {
    std::unique_ptr<TrackerSender> sender;
    std::function<void(const std::string& run_id)> remember;  // in output_dir; empty once that is done
    bool takes_system = false;                                // metrics of the machine, too
  };
  std::vector<Tracker> trackers;
  std::optional<MetricsServer> server;
  ServedStatus served;
  StepWindow window;
  EfficiencyMeter efficiency;
  // For the remaining time: the time of a step, and its share of evaluations and saves.
  int64_t steps_here = 0;
  double step_seconds = 0, other_seconds = 0;
  LossEnds losses;
};

Reporter::Reporter(ReportOptions options, Logger& logger)
    : options_(std::move(options)), logger_(logger), sinks_(std::make_unique<Sinks>()) {
  options_.logging_steps = std::max<int64_t>(1, options_.logging_steps);
  if (options_.logging_dir.empty()) options_.logging_dir = options_.output_dir + "/runs";
  if (!options_.run_name.empty()) options_.logging_dir += "/" + folder_name(options_.run_name);
}

Reporter::~Reporter() { logger_.console().clear_progress(); }

void Reporter::on_start(const RunStart& start) {
  start_ = start;
  sinks_->efficiency = EfficiencyMeter(start.total_steps);
  state_.global_step = start.resumed_step;
  state_.max_steps = start.total_steps;
  state_.num_train_epochs = start.num_train_epochs;
  state_.train_batch_size = start.train_batch_size;
  state_.logging_steps = options_.logging_steps;
  state_.eval_steps = start.eval_steps;
  state_.save_steps = start.save_steps;
  if (contains(options_.report_to, ReportTarget::kJsonl)) {
    const std::string path = options_.output_dir + "/metrics.jsonl";
    if (start.resumed) {
      ResumedMetrics found;
      sinks_->metrics_file = MetricsFile::resume(path, {start.resumed_step, start.evaluation_due}, found);
      state_.log_history = std::move(found.history);
      if (found.dropped_later + found.dropped_broken > 0) {
        logger_.info(
            "metrics.jsonl: {} lines from after step {} removed, they are written again; {} broken lines removed",
            found.dropped_later, start.resumed_step, found.dropped_broken);
      }
    } else {
      sinks_->metrics_file = MetricsFile::create(path);
    }
  }
  if (contains(options_.report_to, ReportTarget::kTensorboard)) open_tensorboard(start);
  if (contains(options_.report_to, ReportTarget::kMlflow)) open_mlflow(start.resumed);
  open_packages(start.resumed);
  if (options_.metrics_port > 0) open_server();
}

void Reporter::open_tensorboard(const RunStart& start) {
  try {
    sinks_->tensorboard.emplace(options_.logging_dir);
    if (start.resumed) sinks_->tensorboard->forget_from(start.resumed_step + 1);
  } catch (const std::system_error& error) {
    sinks_->tensorboard.reset();
    logger_.warning("TensorBoard is switched off: {}", error.what());
  }
}

void Reporter::open_mlflow(bool resumed) {
  options_.mlflow = with_mlflow_environment(std::move(options_.mlflow));
  MlflowOptions options = options_.mlflow;
  options.run_name = options_.title;
  for (const auto& [name, value] : {std::pair("mlflow.source.name", "hone"), std::pair("mlflow.source.type", "LOCAL"),
                                    std::pair("hone.version", version())}) {
    options.tags.emplace_back(name, value);
  }
  if (const char* user = std::getenv("USER")) options.tags.emplace_back("mlflow.user", user);
  if (resumed) continue_mlflow_run(options, options_.output_dir);
  sinks_->trackers.push_back(
      {std::make_unique<TrackerSender>(make_mlflow_store(options), options.params),
       [this](const std::string& id) { write_mlflow_run(options_.mlflow, id, options_.output_dir); }, true});
}

void Reporter::open_packages(bool resumed) {
  for (PackageOptions& options : options_.packages) {
    options.output_dir = options_.output_dir;
    if (options.run_name.empty()) options.run_name = options_.title;
    if (resumed) continue_package_run(options);
    sinks_->trackers.push_back({std::make_unique<TrackerSender>(make_package_store(options), options.params),
                                [&options](const std::string& id) { write_package_run(options, id); }});
  }
}

void Reporter::tell_notices() {
  for (Sinks::Tracker& tracker : sinks_->trackers) {
    for (const TrackerNotice& notice : tracker.sender->take_notices()) {
      logger_.log(notice.warning ? LogLevel::kWarning : LogLevel::kInfo, notice.text);
    }
    if (!tracker.remember || tracker.sender->run_id().empty()) continue;
    tracker.remember(tracker.sender->run_id());
    tracker.remember = {};
  }
}

void Reporter::end_trackers(const RunEnd& end) {
  for (Sinks::Tracker& tracker : sinks_->trackers) {
    // A run that stopped because no evaluation got better has finished.
    const TrackerCounts counts = tracker.sender->end(end.killed ? TrackerStatus::kKilled : TrackerStatus::kFinished);
    tell_notices();
    const bool opened = !tracker.sender->run_id().empty();
    const std::string name = tracker.sender->name();
    if (counts.dropped + counts.refused > 0) {
      logger_.warning("{}: {} values were sent, {} dropped because it did not accept them, {} rejected; {} has all",
                      name, with_commas(counts.sent), with_commas(counts.dropped), with_commas(counts.refused),
                      sinks_->metrics_file ? "metrics.jsonl" : "run.log");
    }
    if (opened && !counts.closed) {
      logger_.warning("{}: the run's final status did not arrive; {} shows the run as running", name, name);
    }
  }
  sinks_->trackers.clear();
}

void Reporter::open_server() {
  try {
    sinks_->server.emplace(options_.metrics_host, static_cast<int>(options_.metrics_port));
    sinks_->served.run_name = options_.title;
    publish("training");
    logger_.info("metrics at http://{}:{}/metrics", options_.metrics_host, options_.metrics_port);
  } catch (const std::system_error& error) {
    logger_.warning("metrics_port {}: {}; the run continues without it", options_.metrics_port, error.what());
  }
}

void Reporter::publish(const char* state) {
  if (!sinks_->server) return;
  sinks_->served.state = state;
  sinks_->served.step = state_.global_step;
  sinks_->served.total_steps = start_.total_steps;
  sinks_->server->publish(sinks_->served);
}

void Reporter::on_step(StepMetrics metrics) {
  Sinks& s = *sinks_;
  ++s.steps_here;
  s.step_seconds += metrics.step_time;
  metrics.efficiency = s.efficiency.after(metrics);
  if (!metrics.eta) metrics.eta = seconds_left(metrics.step);
  state_.global_step = metrics.step;
  state_.epoch = metrics.epoch;
  state_.num_input_tokens_seen = metrics.num_tokens;
  show_progress(metrics);
  const bool due = metrics.step % options_.logging_steps == 0 || metrics.step >= start_.total_steps ||
                   (options_.logging_first_step && metrics.step == 1);
  s.window.add(std::move(metrics));
  if (due) emit(s.window.take());
  tell_notices();
}

void Reporter::emit(const StepMetrics& metrics) {
  sinks_->losses.add(metrics.loss);
  show([&](const LineLayout& layout) { return step_line(metrics, layout); });
  write(metrics.step, metric_list(metrics));
}

void Reporter::on_system(int64_t step, const std::vector<Metric>& metrics) {
  for (Sinks::Tracker& tracker : sinks_->trackers) {
    if (tracker.takes_system) tracker.sender->log(step, metrics);
  }
}

void Reporter::on_eval(const EvalMetrics& metrics) {
  sinks_->other_seconds += metrics.seconds;
  show([&](const LineLayout& layout) { return eval_line(metrics, layout); });
  write(metrics.step, metric_list(metrics));
}

void Reporter::on_save(const SaveReport& save) {
  sinks_->other_seconds += save.seconds;
  std::string detail = human_duration(save.seconds);
  if (save.bytes > 0) detail = human_bytes(save.bytes) + ", " + detail;
  show([&](const LineLayout& layout) {
    return styled(step_column(save.step, layout), Style::kBold, layout.color) + "  " +
           styled("saved ", Style::kDim, layout.color) + fmt::format("{} ({})", one_line(save.path), detail);
  });
  if (options_.writes_state) write_trainer_state(state_, options_.output_dir);
}

void Reporter::on_end(const RunEnd& end) {
  if (!sinks_->window.empty()) emit(sinks_->window.take());
  logger_.console().clear_progress();
  if (options_.writes_state) write_trainer_state(state_, options_.output_dir);
  publish(end.finished ? "finished" : "stopped");
  end_trackers(end);
  summarise(end);
}

void Reporter::write(int64_t step, const std::vector<Metric>& metrics) {
  Json object = metrics_object(metrics);
  if (sinks_->metrics_file) sinks_->metrics_file->append(object);
  if (options_.on_row) options_.on_row(object);
  for (Sinks::Tracker& tracker : sinks_->trackers) tracker.sender->log(step, metrics);
  if (sinks_->server) {
    sinks_->served.metrics->erase("nonfinite");
    sinks_->served.metrics->update(object);
    publish("training");
  }
  state_.log_history->push_back(std::move(object));
  if (!sinks_->tensorboard) return;
  try {
    sinks_->tensorboard->write(step, metrics);
  } catch (const std::system_error& error) {
    sinks_->tensorboard.reset();
    logger_.warning("TensorBoard is switched off, metrics.jsonl continues: {}", error.what());
  }
}

void Reporter::show(const std::function<std::string(const LineLayout&)>& line) {
  Console& console = logger_.console();
  console.line(line({.total_steps = start_.total_steps, .width = console.width(), .color = console.color()}));
  logger_.file_only(line({.total_steps = start_.total_steps, .width = kFileWidth}));
}

void Reporter::show_progress(const StepMetrics& metrics) {
  Progress progress{.label = "train", .done = metrics.step, .total = start_.total_steps};
  if (start_.num_train_epochs > 0) {
    progress.detail = fmt::format("epoch {:.2f}/{:.4g}", metrics.epoch, start_.num_train_epochs);
  }
  progress.seconds_left = metrics.eta;
  logger_.console().set_progress(std::move(progress));
}

double Reporter::seconds_left(int64_t step) const {
  const Sinks& s = *sinks_;
  const double per_step = s.efficiency.average_step().value_or(s.step_seconds / static_cast<double>(s.steps_here));
  const double other = s.other_seconds / static_cast<double>(s.steps_here);
  return static_cast<double>(std::max<int64_t>(0, start_.total_steps - step)) * (per_step + other);
}

void Reporter::summarise(const RunEnd& end) {
  const Sinks& s = *sinks_;
  const bool color = logger_.console().color();
  std::string text =
      "\n  " + (end.finished ? styled("done", Style::kGreen, color) : styled("stopped", Style::kYellow, color));
  text += fmt::format("  {} steps in {}", with_commas(state_.global_step - start_.resumed_step),
                      human_duration(s.step_seconds + s.other_seconds));
  if (!end.reason.empty()) text += ": " + one_line(end.reason);
  text += '\n';
  std::vector<std::string> results;
  if (const std::string losses = s.losses.text(); !losses.empty()) results.push_back(losses);
  if (end.skipped > 0) {
    results.push_back(styled(fmt::format("{} of the steps skipped: their numbers were not finite", end.skipped),
                             Style::kYellow, color));
  }
  if (state_.best) {
    results.push_back(
        fmt::format("best evaluation {} at step {}", fixed_number(state_.best->metric, 4), state_.best->step));
  }
  if (!results.empty()) text += fmt::format("  {}\n", fmt::join(results, "   "));
  text += fmt::format("  output in {}\n", one_line(options_.output_dir));
  logger_.block(text);
}

}  // namespace hone
