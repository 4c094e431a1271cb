// The build without CUDA: these functions are never called.
#include "core/cuda_peer.h"
#include "core/error.h"

namespace hone::cuda {

SharedMemoryHandle share(int, const std::byte*) { HONE_ASSERT(false, "built without CUDA"); }
std::byte* open_shared(int, const SharedMemoryHandle&, std::string&) { HONE_ASSERT(false, "built without CUDA"); }
void close_shared(int, std::byte*) noexcept {}

}  // namespace hone::cuda
