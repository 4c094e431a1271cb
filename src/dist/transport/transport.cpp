#include "dist/transport/transport.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "core/base/error.h"

namespace hone {
namespace {

/// A time, not a number of tries: on a busy machine each try may take a time slice.
constexpr auto kEagerTime = std::chrono::milliseconds(1);
constexpr auto kProbePause = std::chrono::microseconds(50);
constexpr auto kBetweenChecks = std::chrono::milliseconds(20);

}  // namespace

GroupTransport::GroupTransport(std::shared_ptr<Transport> all, std::vector<int> ranks)
    : all_(std::move(all)),
      ranks_(std::move(ranks)),
      rank_(static_cast<int>(std::find(ranks_.begin(), ranks_.end(), all_->rank()) - ranks_.begin())) {
  HONE_ASSERT(rank_ < size(), "a rank outside the group");
}

void PatientWait::pause() {
  const Clock::time_point now = Clock::now();
  if (now - last_moved_ < kEagerTime) {
    std::this_thread::yield();
    return;
  }
  std::this_thread::sleep_for(kProbePause);
  if (now - last_check_ < kBetweenChecks) return;
  control_.check();
  last_check_ = now;
}

void end_together(Control& control) noexcept {
  if (std::uncaught_exceptions() > 0) return;
  try {
    control.barrier();
  } catch (const Error&) {
  }
}

}  // namespace hone
