// The time line of a profile in the Trace Event Format, which chrome://tracing and Perfetto read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/profiler.h"

namespace hone {

/// A trace that grows with a run. After each add() the file is whole and valid JSON, so a run that is killed leaves
/// the time line of the steps before. It has lanes for steps, blocks and ops, for collectives where there are some
/// and, on a CPU, for each thread: a span for each loop, named after the op it belongs to. Waits for collectives are in
/// the lane of the ops that wait.
class TraceFile {
 public:
  /// Replaces what is at `path`. UserError if it cannot be written.
  explicit TraceFile(std::filesystem::path path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  /// Appends a profile whose times count from `begin`, seconds after those of the first one. UserError on a full disk.
  void add(const Profile& profile, double begin = 0);

 private:
  void write(const std::string& events);

  std::filesystem::path path_;
  int file_ = -1;
  int64_t end_ = 0;  // of the events, before the closing brackets
  bool empty_ = true;
  std::vector<bool> named_;  // lanes
};

}  // namespace hone
