// CudaGraph: recorded launches that one call queues again. The CUDA half of GraphCache.
#pragma once

#include <functional>
#include <memory>

#include "core/cuda/cuda_queue.h"

namespace hone {

class CudaGraph {
 public:
  /// Records the launches of `work` without running them. Throws Error(kDeviceFailed) if part of the work cannot be
  /// recorded: an upload or download, a wait, an allocation.
  CudaGraph(CudaQueue& queue, const std::function<void()>& work);
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  /// Queues all recorded launches after the work queued so far.
  void launch();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hone
