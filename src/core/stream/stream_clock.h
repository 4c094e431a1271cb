// StreamClock: the times at which a stream reaches points of its work, without stopping it.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "core/cuda/cuda_events.h"
#include "core/stream/stream.h"

namespace hone {

class StreamClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// The stream must outlive the clock; wait for its work before destroying the clock.
  explicit StreamClock(Stream& stream);

  /// Marks the point after all work queued so far; returns the mark's index, from 0. `beside`: another cudaStream_t of
  /// the device, or null.
  size_t mark(void* beside = nullptr);
  size_t size() const;
  /// Waits; returns the time of each mark in seconds after mark 0.
  std::vector<double> seconds();
  /// CPU only, after seconds(), with at least one mark: the time of mark 0.
  Clock::time_point start() const { return times_.front(); }
  /// Starts again with mark 0; after seconds().
  void clear();

 private:
  Stream& stream_;
  std::deque<Clock::time_point> times_;  // CPU; written by the queue; a deque, since marks must not move
  std::unique_ptr<CudaEvents> events_;   // GPU
};

}  // namespace hone
