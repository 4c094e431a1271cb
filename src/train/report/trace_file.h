// Writes the time line of a profile in the Trace Event Format, for chrome://tracing and Perfetto.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/stream/profiler.h"

namespace hone {

/// How every such file begins.
inline constexpr std::string_view kTraceBeginning = R"({"displayTimeUnit":"ms","traceEvents":[)";

/// A trace that grows with a run. After each add() the file is complete, valid JSON, so a killed run leaves the time
/// line of the steps before. It has lanes for steps, blocks and ops, for collectives and copies if there are any, and
/// on a CPU one lane per thread with a span for each loop, named after its op. Waits for collectives are in the lane of
/// ops.
class TraceFile {
 public:
  /// Replaces the file at `path`. UserError if it cannot be written.
  explicit TraceFile(std::filesystem::path path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  /// Appends a profile, with times relative to `begin`, in seconds after those of the first one. UserError if the disk
  /// is full.
  void add(const Profile& profile, double begin = 0);

 private:
  void write(const std::string& events);

  std::filesystem::path path_;
  int file_ = -1;
  int64_t end_ = 0;  // offset of the end of events, before the closing brackets
  bool empty_ = true;
  std::vector<bool> named_;  // lanes
};

}  // namespace hone
