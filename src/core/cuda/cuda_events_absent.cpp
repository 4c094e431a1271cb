// The build without CUDA: no queue exists.
#include "core/base/error.h"
#include "core/cuda/cuda_events.h"

namespace hone {

struct CudaEvents::State {};
CudaEvents::CudaEvents(CudaQueue&) { HONE_ASSERT(false, "built without CUDA"); }
CudaEvents::~CudaEvents() = default;
void CudaEvents::record(void*) {}
size_t CudaEvents::size() const { return 0; }
std::vector<double> CudaEvents::seconds() { return {}; }
void CudaEvents::clear() {}

}  // namespace hone
