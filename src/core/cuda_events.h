// CudaEvents: when a CUDA stream reached certain points of its work. The CUDA half of StreamClock.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/cuda_queue.h"

namespace hone {

class CudaEvents {
 public:
  explicit CudaEvents(CudaQueue& queue);
  ~CudaEvents();
  CudaEvents(const CudaEvents&) = delete;
  CudaEvents& operator=(const CudaEvents&) = delete;

  /// Queues an event behind the work queued so far, there or on another cudaStream_t of the device.
  void record(void* stream = nullptr);
  size_t size() const;
  /// Waits; seconds of each event after the first (resolution about half a microsecond).
  std::vector<double> seconds();
  /// Forgets the recorded events; what they were made of is used again.
  void clear();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hone
