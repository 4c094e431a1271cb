// Virtual memory management of the CUDA driver: the CUDA half of core/memory/mapped_memory.h. Includes no CUDA header.
#pragma once

#include <cstddef>
#include <string>

namespace hone::cuda {

/// 0 if the GPU or the driver cannot map memory that other processes share.
size_t mapping_granularity(int device);

/// Memory of `device`, to be shared as file descriptors. Throws Error(kDeviceFailed) with the size if it is not free.
unsigned long long create_memory(int device, size_t bytes);
void release_memory(unsigned long long memory) noexcept;
/// A file descriptor that another process imports.
int share_memory(unsigned long long memory);
/// 0 if the driver refuses, with its reason.
unsigned long long import_memory(int device, int descriptor, std::string& why_not);

std::byte* reserve_addresses(int device, size_t bytes);
void free_addresses(int device, std::byte* addresses, size_t bytes) noexcept;
/// Maps all of a memory. This and the next return the driver's reason if it refuses, else "".
std::string map_memory(int device, std::byte* at, unsigned long long memory, size_t bytes);
/// Lets `device` access mapped addresses.
std::string allow_access(int device, std::byte* at, size_t bytes);
void unmap_memory(int device, std::byte* at, size_t bytes) noexcept;

}  // namespace hone::cuda
