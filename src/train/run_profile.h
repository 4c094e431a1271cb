// RunProfile: where the time of a few steps of a run goes.
#pragma once

#include <filesystem>
#include <optional>

#include "core/profiler.h"
#include "report/log.h"

namespace hone {

/// Profiles three steps once three have gone by (in a short run, its last ones), logs the counters of their stages and
/// writes them to profile-stages.json, their time line to profile.json. Stream and logger outlive it.
class RunProfile {
 public:
  /// `steps` are still to come.
  RunProfile(Stream& stream, Logger& logger, std::filesystem::path folder, int64_t steps);

  void before_step();
  /// After a step of so many tokens.
  void after_step(int64_t tokens);

 private:
  void write();

  Stream& stream_;
  Logger& logger_;
  std::filesystem::path folder_;
  int64_t first_, last_;  // profiled steps, counted from 0
  int64_t step_ = 0;
  int64_t tokens_ = 0;  // of the profiled steps
  std::optional<Profiler> profiler_;
};

}  // namespace hone
