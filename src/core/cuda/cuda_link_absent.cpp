// The build without CUDA: these functions are never called.
#include "core/base/error.h"
#include "core/cuda/cuda_link.h"

namespace hone {

struct CudaLink::State {};
CudaLink::CudaLink(CudaQueue&) { HONE_ASSERT(false, "built without CUDA"); }
CudaLink::~CudaLink() = default;
std::function<void()> CudaLink::mark() { return {}; }
void CudaLink::hold(std::function<void()>) {}
void CudaLink::copy(std::byte*, const std::byte*, size_t) {}

}  // namespace hone
