// Rows of a file of JSON lines that another process may be writing: metrics.jsonl and others of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/text/json_fwd.h"
#include "report/page/record_lines.h"

namespace hone {

/// The most bytes of a line that is read.
inline constexpr size_t kLongestRecordLine = size_t{8} << 20;

/// The step of a row, or -1.
int64_t row_step(const Json& row);
/// A field that is a string, or "".
std::string row_text(const Json& row, const char* key);

/// Reads the rows of a file that grows, each once: JSON objects with a step.
class FollowedRows {
 public:
  explicit FollowedRows(std::filesystem::path path) : lines_(std::move(path), kLongestRecordLine) {}

  /// As FollowedLines::read_on(). A file that cannot be read has no rows.
  void read_on(const std::function<void()>& anew, const std::function<void(const Json& row)>& row);

  /// Calls `row` with what follows the last whole line, if it lacks nothing but its end.
  void last(const std::function<void(const Json& row)>& row) const;
  bool there() const { return lines_.there(); }
  /// Adds what was left out.
  void note(std::vector<std::string>& notes) const;

 private:
  FollowedLines lines_;
  int64_t broken_ = 0;   // lines that are not rows
  std::string failure_;  // why the file cannot be read
};

/// What the rows of a file add up to; read_on() adds those that are new. A State has add(row).
template <class State>
class RecordOfRows {
 public:
  explicit RecordOfRows(std::filesystem::path path) : rows_(std::move(path)) {}

  const FollowedRows& rows() const { return rows_; }

  const State& read_on() {
    rows_.read_on([this] { whole_ = {}; }, [this](const Json& row) { whole_.add(row); });
    with_last_.reset();
    rows_.last([this](const Json& row) { with_last_.emplace(whole_).add(row); });
    return with_last_ ? *with_last_ : whole_;
  }

 private:
  FollowedRows rows_;
  State whole_;                     // what the whole lines add up to
  std::optional<State> with_last_;  // and a last one without its end
};

}  // namespace hone
