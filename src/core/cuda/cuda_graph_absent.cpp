// The build without CUDA: no queue exists.
#include "core/base/error.h"
#include "core/cuda/cuda_graph.h"

namespace hone {

struct CudaGraph::State {};
CudaGraph::CudaGraph(CudaQueue&, const std::function<void()>&) { HONE_ASSERT(false, "built without CUDA"); }
CudaGraph::~CudaGraph() = default;
void CudaGraph::launch() {}

}  // namespace hone
