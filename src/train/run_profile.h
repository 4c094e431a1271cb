// RunProfile: a time line of a few steps of a run.
#pragma once

#include <filesystem>
#include <optional>

#include "core/profiler.h"
#include "report/log.h"

namespace hone {

/// Profiles three steps once three have gone by (in a short run, its last ones), logs where their time went and writes
/// the time line. Stream and logger outlive it.
class RunProfile {
 public:
  /// `steps` are still to come.
  RunProfile(Stream& stream, Logger& logger, std::filesystem::path file, int64_t steps);

  void before_step();
  void after_step();

 private:
  void write();

  Stream& stream_;
  Logger& logger_;
  std::filesystem::path file_;
  int64_t first_, last_;  // profiled steps, counted from 0
  int64_t step_ = 0;
  std::optional<Profiler> profiler_;
};

}  // namespace hone
