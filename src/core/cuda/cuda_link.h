// CudaLink: order between a CUDA stream and threads of the host, in both directions. The CUDA half of StreamLink.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "core/cuda/cuda_queue.h"

namespace hone {

class CudaLink {
 public:
  explicit CudaLink(CudaQueue& queue);
  ~CudaLink();
  CudaLink(const CudaLink&) = delete;
  CudaLink& operator=(const CudaLink&) = delete;

  /// Marks the work that is queued now. The returned function, which may outlive this, waits for it on any thread and
  /// throws Error(kDeviceFailed) if the device has failed.
  std::function<void()> mark();
  /// Work that is queued later runs after `wait` has returned. A thread of the driver calls it; it must neither throw
  /// nor call CUDA.
  void hold(std::function<void()> wait);
  /// Queues a copy between device and pinned host memory, in either direction.
  void copy(std::byte* to, const std::byte* from, size_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hone
