// The rows of a grid: one JSON object a line for each scenario that has been run.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/bench/grid/grid_scenario.h"
#include "app/launch/captured_process.h"
#include "core/text/json_value.h"

namespace hone {

/// How a scenario ended; in a row, "status".
enum class GridStatus {
  kMeasured,
  kDoesNotFit,  ///< its memory plan, or memory that could not be allocated
  kRefused,     ///< a setting, or a combination of settings
  kTimedOut,
  kCrashed,  ///< any other end
};

/// "measured", "does not fit", "refused", "timed out", "crashed"
std::string name_of(GridStatus status);
/// Every status, in this order.
const std::vector<GridStatus>& grid_statuses();

/// The row of a scenario whose command has ended:
///   {"status", "command", "scenario": settings by name, "version", "date", "wall_s", "host_peak_bytes"},
///   measured: "result", the JSON of bench step; otherwise "message" and "fix", the program's error or how it ended,
///   "exit_code" or "signal", and "stderr", the end of what it wrote there.
Json make_row(const GridScenario& scenario, const CapturedProcess& process, double limit_s);

/// The status of a row.
GridStatus status_of(const Json& row);

/// The rows of a file, which are appended to it. The last row of a command counts.
class GridRows {
 public:
  /// Reads a file, which need not exist. A last line that a killed grid has not finished is ignored. Throws UserError
  /// (file:line) for a line that is not a row.
  explicit GridRows(std::filesystem::path path);

  /// The row of a command line, or nullptr.
  const Json* find(const std::string& command_line) const;

  /// Appends a row; it has reached the system when this returns. Removes an unfinished last line before. Throws
  /// UserError or std::system_error if it cannot be written.
  void add(const Json& row);

 private:
  void read(const std::string& text);

  std::filesystem::path path_;
  std::map<std::string, JsonValue> rows_;
  std::string whole_;  // the file's lines without an unfinished last one; only until that has been removed
  bool unfinished_ = false;
};

}  // namespace hone
