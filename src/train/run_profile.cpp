#include "train/run_profile.h"

#include <algorithm>

#include "train/profile_report.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

/// In the first steps libraries choose algorithms and memory is touched for the first time.
constexpr int64_t kWarmUp = 3, kProfiled = 3;

}  // namespace

RunProfile::RunProfile(Stream& stream, Logger& logger, std::filesystem::path file, int64_t steps)
    : stream_(stream),
      logger_(logger),
      file_(std::move(file)),
      first_(std::clamp<int64_t>(steps - kProfiled, 0, kWarmUp)),
      last_(std::min(first_ + kProfiled, steps) - 1) {}

void RunProfile::before_step() {
  if (step_ == first_) profiler_.emplace(stream_);
}

void RunProfile::after_step() {
  if (step_++ == last_) write();
}

void RunProfile::write() {
  const std::vector<ProfileSpan> spans = profiler_->take();
  profiler_.reset();
  write_text_file(file_, chrome_trace(spans).dump() + "\n");
  logger_.block(profile_table(summarise_profile(spans), logger_.console().color()));
  logger_.info("time line of {} steps: {} (open it in chrome://tracing or ui.perfetto.dev)", last_ - first_ + 1,
               file_.string());
}

}  // namespace hone
