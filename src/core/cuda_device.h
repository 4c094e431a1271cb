// What Hone asks of CUDA outside of kernels: devices, their memory, and copies. No CUDA header is included here, so
// that all other code is the same in a build without CUDA (device_count() is then 0, and nothing else is called).
#pragma once

#include <cstddef>
#include <string>

namespace hone::cuda {

/// True if this program was compiled with CUDA.
bool built();

/// GPUs that the driver shows; 0 without a driver, without a GPU or in a build without CUDA.
int device_count();

/// The architectures that this program has machine code for, as has_code_for() reads them: "90a". "" without CUDA.
std::string built_architectures();

/// Why device_count() is 0, in a line for the user; "" if it is not.
std::string why_no_device();

struct DeviceInfo {
  std::string name;
  std::string pci_bus_id = {};  ///< "0000:1b:00.0": its name for other tools
  int major = 0, minor = 0;     ///< compute capability
  int multiprocessors = 0;
  size_t l2_bytes = 0;
  size_t shared_memory = 0;                ///< bytes that a block may have
  size_t total_bytes = 0, free_bytes = 0;  ///< of its memory, as the driver counts it
};

/// Slow: some milliseconds.
DeviceInfo device_info(int index);

/// Of a GPU's memory, as the driver counts it: fast enough for every step.
struct MemoryCount {
  size_t free = 0, total = 0;
};
MemoryCount memory_count(int index);

/// "13.0": of the driver (the newest CUDA it runs) and of the runtime this program was built with; "" if not known.
struct Versions {
  std::string driver_cuda, runtime;
};
Versions versions();

/// Zero-filled device memory. Throws Error(kDeviceFailed) with what is asked for and what is free.
std::byte* allocate(int device, size_t bytes);
void release(int device, std::byte* memory) noexcept;

/// Host memory that copies to and from a device at full speed, beside other work.
std::byte* allocate_pinned(size_t bytes);
void release_pinned(std::byte* memory) noexcept;

/// Makes host memory that is there already reachable for copies and kernels of all devices, at the same address. Throws
/// Error(kDeviceFailed) with the size.
void pin(int device, std::byte* memory, size_t bytes);
void unpin(std::byte* memory) noexcept;

/// Copies that wait for nothing but themselves: work queued on streams is not ordered against them.
void copy_to_device(int device, std::byte* destination, const void* source, size_t bytes);
void copy_to_host(int device, void* destination, const std::byte* source, size_t bytes);

}  // namespace hone::cuda
