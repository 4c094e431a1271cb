#include "core/stream/stream_clock.h"

namespace hone {

StreamClock::StreamClock(Stream& stream) : stream_(stream) {
  if (stream.device().kind == DeviceKind::kCuda) events_ = std::make_unique<CudaEvents>(stream.cuda());
}

size_t StreamClock::mark(void* beside) {
  if (events_) {
    events_->record(beside);
    return events_->size() - 1;
  }
  Clock::time_point* time = &times_.emplace_back();
  stream_.enqueue([time](ThreadPool&) { *time = Clock::now(); });
  return times_.size() - 1;
}

size_t StreamClock::size() const { return events_ ? events_->size() : times_.size(); }

std::vector<double> StreamClock::seconds() {
  if (events_) return events_->seconds();
  stream_.synchronize();
  std::vector<double> seconds;
  seconds.reserve(times_.size());
  for (const Clock::time_point time : times_) {
    seconds.push_back(std::chrono::duration<double>(time - times_.front()).count());
  }
  return seconds;
}

void StreamClock::clear() {
  times_.clear();
  if (events_) events_->clear();
}

}  // namespace hone
