// sweep.json: what a sweep knows about its runs.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/sweep/sweep_file.h"
#include "core/text/json_value.h"

namespace hone {

enum class SweepStatus {
  kWaiting,
  kRunning,
  kFinished,
  kPaused,      ///< at a rung, until the others have got there
  kEndedEarly,  ///< by a rule (stop_rule.h)
  kInterrupted,
  kFailed,
};

/// "waiting", "running", "finished", "paused", "ended early", "interrupted", "failed"
std::string name_of(SweepStatus status);

struct SweepRow {
  SweepStatus status = SweepStatus::kWaiting;
  std::string why = {};    ///< why it failed or was ended early
  double seconds = 0;      ///< that the last start took
  JsonValue config = {};   ///< the stated keys with their resolved values; null before the first start
  JsonValue summary = {};  ///< as in the run's record (report/page/run_record.h), or null
};

class SweepRecord {
 public:
  /// Reads FOLDER/sweep.json, which need not exist. Throws UserError if it is not of a sweep.
  explicit SweepRecord(const std::filesystem::path& folder);

  /// The row of a run, or a new one.
  SweepRow& row(const std::string& name) { return rows_[name]; }

  /// {"hone", "file", "runs": [{"name", "folder", "settings", "status", "why", "seconds", "config", "summary"}],
  /// "best"} of these runs, in their order; rows of other runs are kept after them. `best`: a name, or "".
  std::string text(const SweepFile& sweep, const std::string& file, const std::filesystem::path& folder,
                   const std::string& best) const;

  static bool is_record(std::string_view beginning) { return beginning.starts_with("{\n \"hone_sweep\""); }

 private:
  std::map<std::string, SweepRow> rows_;
};

/// The keys whose values differ in two objects of resolved values: "learning_rate (1e-4 before, 2e-4 now)".
std::vector<std::string> changed_keys(const Json& before, const Json& now);

}  // namespace hone
