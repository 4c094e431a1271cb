// The build without CUDA: there are no devices, so no other function is called. Queues are those of a planned GPU.
#include "core/base/error.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/cuda_queue.h"
#include "core/cuda/planned_device.h"

namespace hone {

namespace cuda {

bool built() { return false; }
std::string built_architectures() { return ""; }
int device_count() { return 0; }
std::string why_no_device() { return "this program was built without CUDA"; }
bool driver_is_too_old() { return false; }
DeviceInfo device_info(int) { HONE_ASSERT(false, "built without CUDA"); }
MemoryCount memory_count(int) { HONE_ASSERT(false, "built without CUDA"); }
Versions versions() { return {}; }
ProductsLibrary products_library() { return {}; }
std::byte* allocate(int, size_t) { HONE_ASSERT(false, "built without CUDA"); }
void release(int, std::byte*) noexcept {}
void clear(int, std::byte*, size_t) {}
void throw_out_of_memory(int, size_t) { HONE_ASSERT(false, "built without CUDA"); }
std::byte* allocate_pinned(size_t) { HONE_ASSERT(false, "built without CUDA"); }
void release_pinned(std::byte*) noexcept {}
void pin(int, std::byte*, size_t) { HONE_ASSERT(false, "built without CUDA"); }
void unpin(std::byte*) noexcept {}
void copy_to_device(int, std::byte*, const void*, size_t) { HONE_ASSERT(false, "built without CUDA"); }
void copy_to_host(int, void*, const std::byte*, size_t) { HONE_ASSERT(false, "built without CUDA"); }

}  // namespace cuda

struct CudaQueue::State {};
CudaQueue::CudaQueue(int device) { HONE_ASSERT(is_planned({DeviceKind::kCuda, device}), "built without CUDA"); }
CudaQueue::~CudaQueue() = default;
int CudaQueue::device() const { return kPlannedGpu.index; }
int CudaQueue::multiprocessors() const { return PlannedGpu::kMultiprocessors; }
int CudaQueue::compute_capability() const { return PlannedGpu::kComputeCapability; }
size_t CudaQueue::l2_bytes() const { return PlannedGpu::kL2Bytes; }
size_t CudaQueue::shared_memory() const { return PlannedGpu::kSharedMemory; }
void* CudaQueue::stream() const { return nullptr; }
const CudaLibraries& CudaQueue::libraries() const { HONE_ASSERT(false, "built without CUDA"); }
void CudaQueue::upload(std::byte*, const void*, size_t) {}
void CudaQueue::download(void*, const std::byte*, size_t) {}
void CudaQueue::call_after(std::function<void()> done) { done(); }
void CudaQueue::synchronize() {}

}  // namespace hone
