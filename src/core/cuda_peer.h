// Device memory that processes of one host share: CUDA's interprocess handles. Includes no CUDA header (cuda_device.h).
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace hone::cuda {

/// How another process opens device memory: the handle of its allocation, and its offset there.
struct SharedMemoryHandle {
  std::array<char, 64> allocation{};
  size_t offset = 0;
};

/// `memory` is in an allocation of cuda::allocate() on `device`.
SharedMemoryHandle share(int device, const std::byte* memory);

/// Opens an allocation of another process for copies to and from `device`; returns its first byte. Close it before its
/// process releases it. Returns null if the devices cannot access each other's memory, with the driver's reason.
std::byte* open_shared(int device, const SharedMemoryHandle& handle, std::string& why_not);
void close_shared(int device, std::byte* allocation) noexcept;

}  // namespace hone::cuda
