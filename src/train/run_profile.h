// RunProfile: where the time of a run's steps goes.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>

#include "core/profiler.h"
#include "report/log.h"
#include "train/profile_report.h"
#include "train/trace_file.h"

namespace hone {

/// Profiles some steps: their time line grows in profile.json step by step, and finish() logs the counters of their
/// stages and writes them to profile-stages.json. Stream and logger outlive it.
class RunProfile {
 public:
  /// `steps` are still to come. Of them `profiled` are, after the first three, or the last ones of a short run; 0: all.
  RunProfile(Stream& stream, Logger& logger, std::filesystem::path folder, int64_t steps, int64_t profiled);

  void before_step();
  /// After a step of so many tokens; finishes after the last one that is profiled.
  void after_step(int64_t tokens);
  /// Also for a run that ends early; a second time it does nothing.
  void finish();

 private:
  Stream& stream_;
  Logger& logger_;
  std::filesystem::path folder_;
  int64_t first_, last_;  // profiled steps, counted from 0
  int64_t step_ = 0;
  std::optional<std::chrono::steady_clock::time_point> begin_;  // of the first profile
  ProfileTotals totals_;
  std::optional<Profiler> profiler_;
  std::optional<TraceFile> trace_;
};

}  // namespace hone
