// The metrics files of a run: metrics.jsonl, one JSON object per line, for pandas.read_json(lines=True) and jq; and
// trainer_state.json.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_value.h"
#include "report/metrics.h"

namespace hone {

// Files that a crash or a full disk must not corrupt: records are appended without a user-space buffer.
// core/files/durable_file.h writes files that are replaced as a whole.

/// Appends whole records to a file. Each write reaches the kernel before it returns, so a crash of the process loses no
/// record. Throws std::system_error with the path in the message.
class AppendFile {
 public:
  /// Creates the file if it does not exist, and its parent directories. `exclusive`: fails if it exists.
  explicit AppendFile(std::string path, bool exclusive = false);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  void write(std::string_view record);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

/// The metrics as one object. JSON has no NaN or infinity, so a value that is not finite is null (which keeps a pandas
/// column numeric) and is listed in the field `nonfinite`, which exists only then:
///   {"step": 7, "loss": null, "nonfinite": {"loss": "NaN"}}       jq 'select(.nonfinite)' finds such steps.
Json metrics_object(std::span<const Metric> metrics);
/// "NaN", "Infinity" or "-Infinity", which are not JSON numbers.
const char* nonfinite_name(double value);

/// Where a run continues. It writes again what comes later: the lines of later steps, and where `evaluation_due` those
/// of the evaluation after `step`, which are the lines without `loss`.
struct ResumePoint {
  int64_t step = 0;
  bool evaluation_due = false;
};

/// The contents of the metrics file of a resumed run.
struct ResumedMetrics {
  JsonArray history;          ///< the kept lines, in order
  size_t dropped_later = 0;   ///< removed lines that the run will write again
  size_t dropped_broken = 0;  ///< removed lines that are not a JSON object, for example after a crash
};

/// Appends to metrics.jsonl; every line reaches the operating system before append returns. Throws UserError on failure
/// (disk full, no permission), since the record of the run would be lost.
class MetricsFile {
 public:
  /// Starts a new run: replaces an existing file.
  static MetricsFile create(const std::string& path);

  /// Continues the run at `path`: removes the lines after `point` (with a temporary file and a rename). A missing file
  /// is a run without history.
  static MetricsFile resume(const std::string& path, const ResumePoint& point, ResumedMetrics& found);

  void append(const Json& object);

 private:
  explicit MetricsFile(AppendFile file) : file_(std::move(file)) {}

  AppendFile file_;
};

// trainer_state.json in the format of the Hugging Face Trainer, for tools that plot or inspect its runs.

/// The best evaluation so far by metric_for_best_model.
struct BestModel {
  double metric = 0;
  int64_t step = 0;
  std::string checkpoint = {};  ///< its folder; empty until it is saved
};

struct TrainerState {
  int64_t global_step = 0;
  int64_t max_steps = 0;
  double epoch = 0;
  double num_train_epochs = 0;
  int64_t num_input_tokens_seen = 0;
  int64_t train_batch_size = 0;  ///< per_device_train_batch_size
  int64_t logging_steps = 1, eval_steps = 0, save_steps = 0;
  std::optional<BestModel> best = {};
  JsonArray log_history = {};  ///< the objects of metrics.jsonl, in order
};

Json to_json(const TrainerState& state);

/// Replaces `folder`/trainer_state.json. Throws UserError on failure.
void write_trainer_state(const TrainerState& state, const std::string& folder);

}  // namespace hone
