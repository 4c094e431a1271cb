// The build without CUDA: these functions are never called.
#include "core/base/error.h"
#include "core/cuda/cuda_lane.h"

namespace hone {

struct CudaLane::State {};
CudaLane::CudaLane(int) { HONE_ASSERT(false, "built without CUDA"); }
CudaLane::~CudaLane() = default;
void* CudaLane::stream() const { return nullptr; }
void CudaLane::wait_for(void*) {}
void CudaLane::copy(std::byte*, const std::byte*, size_t) {}
void CudaLane::hold(void*, int64_t) {}
void CudaLane::finish(int64_t) {}

}  // namespace hone
