#include "train/run_profile.h"

#include <algorithm>

#include "train/profile_report.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

/// In the first steps libraries choose algorithms and memory is touched for the first time.
constexpr int64_t kWarmUp = 3, kProfiled = 3;

}  // namespace

RunProfile::RunProfile(Stream& stream, Logger& logger, std::filesystem::path folder, int64_t steps)
    : stream_(stream),
      logger_(logger),
      folder_(std::move(folder)),
      first_(std::clamp<int64_t>(steps - kProfiled, 0, kWarmUp)),
      last_(std::min(first_ + kProfiled, steps) - 1) {}

void RunProfile::before_step() {
  if (step_ == first_) profiler_.emplace(stream_);
}

void RunProfile::after_step(int64_t tokens) {
  if (profiler_) tokens_ += tokens;
  if (step_++ == last_) write();
}

void RunProfile::write() {
  const Profile profile = profiler_->take();
  profiler_.reset();
  const ProfileSummary summary = summarise_profile(profile, static_cast<double>(tokens_));
  const std::filesystem::path time_line = folder_ / "profile.json", stages = folder_ / "profile-stages.json";
  write_text_file(time_line, chrome_trace(profile).dump() + "\n");
  write_text_file(stages, profile_json(summary).dump(2) + "\n");
  logger_.block(profile_table(summary, logger_.console().color()));
  logger_.info("these counters as JSON: {}; time line of {} steps: {} (open it in chrome://tracing or ui.perfetto.dev)",
               stages.string(), last_ - first_ + 1, time_line.string());
}

}  // namespace hone
