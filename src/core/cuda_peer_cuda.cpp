#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "core/cuda_check.h"
#include "core/cuda_peer.h"

namespace hone::cuda {

namespace {

/// The first byte of the allocation around `memory`. The driver's function is found at run time: the program does not
/// link libcuda, so that it starts where no driver is.
const std::byte* allocation_of(const std::byte* memory) {
  using Function = CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr);
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &symbol, 12000, cudaEnableDefault, &found),
        "finding cuMemGetAddressRange");
  HONE_ASSERT(found == cudaDriverEntryPointSuccess && symbol != nullptr);
  CUdeviceptr base = 0;
  const CUresult result = reinterpret_cast<Function>(symbol)(&base, nullptr, reinterpret_cast<CUdeviceptr>(memory));
  HONE_ASSERT(result == CUDA_SUCCESS, "an address of device memory");
  return reinterpret_cast<const std::byte*>(base);
}

}  // namespace

SharedMemoryHandle share(int device, const std::byte* memory) {
  check(cudaSetDevice(device), "selecting a GPU");
  const std::byte* allocation = allocation_of(memory);
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, const_cast<std::byte*>(allocation)), "sharing device memory");
  SharedMemoryHandle shared;
  static_assert(sizeof handle.reserved == sizeof(shared.allocation));
  std::memcpy(shared.allocation.data(), handle.reserved, shared.allocation.size());
  shared.offset = static_cast<size_t>(memory - allocation);
  return shared;
}

std::byte* open_shared(int device, const SharedMemoryHandle& shared, std::string& why_not) {
  check(cudaSetDevice(device), "selecting a GPU");
  cudaIpcMemHandle_t handle{};
  std::memcpy(handle.reserved, shared.allocation.data(), shared.allocation.size());
  void* memory = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error == cudaSuccess) return static_cast<std::byte*>(memory);
  cudaGetLastError();  // the caller goes on without it
  why_not = cudaGetErrorString(error);
  return nullptr;
}

void close_shared(int device, std::byte* allocation) noexcept {
  cudaSetDevice(device);
  cudaIpcCloseMemHandle(allocation);
}

}  // namespace hone::cuda
