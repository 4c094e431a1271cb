// metrics.jsonl: one JSON object a line, which pandas.read_json(lines=True) and jq read as it is.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "report/metrics.h"
#include "report/output_file.h"

namespace hone {

/// The metrics as one object. JSON has no NaN or infinity, so a value that is not finite is null (which keeps a
/// pandas column numeric) and is named in the field `nonfinite`, which is written only then:
///   {"step": 7, "loss": null, "nonfinite": {"loss": "NaN"}}       jq 'select(.nonfinite)' finds such steps.
Json metrics_object(std::span<const Metric> metrics);
/// "NaN", "Infinity" or "-Infinity", which JSON has not as numbers.
const char* nonfinite_name(double value);

/// What MetricsFile found in the file of the run that is resumed.
struct ResumedMetrics {
  std::vector<Json> history;  ///< the lines kept, in order
  size_t dropped_later = 0;   ///< lines of steps after the resumed one: they will be written again
  size_t dropped_broken = 0;  ///< lines that are not a JSON object, as a crash in the middle of a line leaves
};

/// Appends to metrics.jsonl; every line reaches the operating system before append returns.
/// Errors (disk full, no permission): UserError, since the record of the run would be lost.
class MetricsFile {
 public:
  /// Starts a new run: an existing file is replaced.
  static MetricsFile create(const std::string& path);

  /// Continues the run at `path` after `step`: lines with a greater step are removed (through a temporary file and
  /// rename). A file that does not exist is a run without history.
  static MetricsFile resume(const std::string& path, int64_t step, ResumedMetrics& found);

  void append(const Json& object);

 private:
  explicit MetricsFile(AppendFile file) : file_(std::move(file)) {}

  AppendFile file_;
};

}  // namespace hone
