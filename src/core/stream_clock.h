// StreamClock: when a stream reached certain points of its work, without stopping it there.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "core/cuda_events.h"
#include "core/stream.h"

namespace hone {

class StreamClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// The stream outlives the clock, and waits for its work before the clock goes.
  explicit StreamClock(Stream& stream);

  /// Marks the point behind everything queued so far; returns the mark's number, from 0. `beside`: on another
  /// cudaStream_t of the device, if not null.
  size_t mark(void* beside = nullptr);
  size_t size() const;
  /// Waits; the time of each mark in seconds after mark 0.
  std::vector<double> seconds();
  /// CPU only, after seconds(): when mark 0 was; there is one.
  Clock::time_point start() const { return times_.front(); }
  /// Starts again with mark 0; after seconds().
  void clear();

 private:
  Stream& stream_;
  std::deque<Clock::time_point> times_;  // CPU; written by the queue, whose marks do not move as others are added
  std::unique_ptr<CudaEvents> events_;   // GPU
};

}  // namespace hone
