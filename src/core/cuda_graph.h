// CudaGraph: launches that have been recorded once and are queued again by a single call. The CUDA half of GraphCache.
#pragma once

#include <functional>
#include <memory>

#include "core/cuda_queue.h"

namespace hone {

class CudaGraph {
 public:
  /// Records what `work` queues; nothing of it runs. Throws Error(kDeviceFailed) if part of it cannot be recorded: an
  /// upload or a download, a wait, an allocation.
  CudaGraph(CudaQueue& queue, const std::function<void()>& work);
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  /// Queues it all behind what has been queued so far.
  void launch();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hone
