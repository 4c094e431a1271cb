#include "train/run_profile.h"

#include <algorithm>

#include "core/json.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

/// In the first steps libraries choose algorithms and memory is touched for the first time.
constexpr int64_t kWarmUp = 3;

}  // namespace

RunProfile::RunProfile(Stream& stream, Logger& logger, std::filesystem::path folder, int64_t steps, int64_t profiled)
    : stream_(stream),
      logger_(logger),
      folder_(std::move(folder)),
      first_(profiled == 0 ? 0 : std::clamp<int64_t>(steps - profiled, 0, kWarmUp)),
      last_((profiled == 0 ? steps : std::min(first_ + profiled, steps)) - 1) {}

void RunProfile::before_step() {
  if (step_ < first_ || step_ > last_) return;
  if (step_ == first_) {
    trace_.emplace(folder_ / "profile.json");
    profiler_.emplace(stream_);
  }
}

void RunProfile::after_step(int64_t tokens) {
  if (profiler_) {
    const Profile profile = profiler_->take();
    totals_.add(profile, static_cast<double>(tokens));
    if (!begin_) begin_ = profile.start;
    trace_->add(profile, std::chrono::duration<double>(profile.start - *begin_).count());
  }
  if (step_++ == last_) finish();
}

void RunProfile::finish() {
  if (!profiler_) return;
  profiler_.reset();
  trace_.reset();
  const ProfileSummary summary = totals_.summary();
  const std::filesystem::path time_line = folder_ / "profile.json", stages = folder_ / "profile-stages.json";
  write_text_file(stages, profile_json(summary).dump(2) + "\n");
  logger_.block(profile_table(summary, logger_.console().color()));
  logger_.info("these counters as JSON: {}; time line of {} steps: {} (open it in chrome://tracing or ui.perfetto.dev)",
               stages.string(), summary.steps, time_line.string());
}

}  // namespace hone
