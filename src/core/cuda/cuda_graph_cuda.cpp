#include <cuda_runtime_api.h>

#include "core/cuda/cuda_check.h"
#include "core/cuda/cuda_graph.h"

namespace hone {

struct CudaGraph::State {
  CudaQueue& queue;
  cudaGraphExec_t graph = nullptr;

  cudaStream_t stream() const { return static_cast<cudaStream_t>(queue.stream()); }
};

namespace {

/// Ends the recording on every path: a stream that is still recording runs nothing.
class Recording {
 public:
  explicit Recording(cudaStream_t stream) : stream_(stream) {
    // Only for this thread: other threads may allocate pinned memory.
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "starting to record a graph");
  }
  ~Recording() {
    if (open_) {
      cudaStreamEndCapture(stream_, &graph_);
      cudaGetLastError();
    }
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  cudaGraph_t end() {
    open_ = false;
    const cudaError_t status = cudaStreamEndCapture(stream_, &graph_);
    cudaGetLastError();
    cuda::check(status, "recording a graph");
    return graph_;
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  bool open_ = true;
};

}  // namespace

CudaGraph::CudaGraph(CudaQueue& queue, const std::function<void()>& work)
    : state_(std::make_unique<State>(State{.queue = queue})) {
  Recording recording(state_->stream());
  work();
  const cudaError_t status = cudaGraphInstantiate(&state_->graph, recording.end(), 0);
  cudaGetLastError();
  cuda::check(status, "preparing a graph");
}

CudaGraph::~CudaGraph() {
  if (state_->graph != nullptr) cudaGraphExecDestroy(state_->graph);
}

void CudaGraph::launch() { cuda::check(cudaGraphLaunch(state_->graph, state_->stream()), "launching a graph"); }

}  // namespace hone
