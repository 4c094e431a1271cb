// CudaEvents: timestamps of points in a CUDA stream. The CUDA half of StreamClock.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/cuda/cuda_queue.h"

namespace hone {

class CudaEvents {
 public:
  explicit CudaEvents(CudaQueue& queue);
  ~CudaEvents();
  CudaEvents(const CudaEvents&) = delete;
  CudaEvents& operator=(const CudaEvents&) = delete;

  /// Queues an event after the work queued so far, on this stream or another cudaStream_t of the device.
  void record(void* stream = nullptr);
  size_t size() const;
  /// Waits; returns the time of each event in seconds after the first (resolution about 0.5 µs).
  std::vector<double> seconds();
  /// Clears the recorded events; their CUDA events are reused.
  void clear();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hone
