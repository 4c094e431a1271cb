// The host side of CUDA: devices, their memory, and copies. Includes no CUDA header, so the other code is the same in a
// build without CUDA (device_count() is then 0, and no other function is called).
#pragma once

#include <cstddef>
#include <string>

namespace hone::cuda {

/// Whether this program was compiled with CUDA.
bool built();

/// Number of GPUs that the driver reports; 0 without a driver, without a GPU, or in a build without CUDA.
int device_count();

/// The architectures of this program's GPU code, in the format of has_code_for(): "90a". "" without CUDA.
std::string built_architectures();

/// Why device_count() is 0, as one line for the user; "" otherwise.
std::string why_no_device();
/// Whether there is a driver, which is too old for the CUDA of this program.
bool driver_is_too_old();
/// The line for a driver of a version ("550.54", or "") that cannot run this program (Versions; without a driver,
/// `driver_cuda` is empty).
std::string driver_problem(const std::string& driver, const std::string& driver_cuda, const std::string& runtime);
/// What to do about it: "install driver 580 or newer; …".
std::string driver_fix(const std::string& runtime);

struct DeviceInfo {
  std::string name;
  std::string pci_bus_id = {};  ///< "0000:1b:00.0", as in other tools
  int major = 0, minor = 0;     ///< compute capability
  int multiprocessors = 0;
  size_t l2_bytes = 0;
  size_t shared_memory = 0;  ///< maximum bytes per block
};

/// Slow: takes some milliseconds. Takes no memory of the GPU.
DeviceInfo device_info(int index);

/// A GPU's memory as reported by the driver; fast enough for every step. The first call makes the GPU's context, which
/// takes about half a gigabyte of it.
struct MemoryCount {
  size_t free = 0, total = 0;
};
MemoryCount memory_count(int index);

/// "13.0": the newest CUDA that the driver supports, and the runtime of this build. "" if unknown.
struct Versions {
  std::string driver_cuda, runtime;
};
Versions versions();

/// The library of dense products, which every run on a GPU needs. It is loaded by the first call.
struct ProductsLibrary {
  std::string found;         ///< "13.1.0, /path/of/libcublasLt.so.13"; "" if it cannot be loaded:
  std::string problem, fix;  ///< why, with the paths that were tried, and what to do
};
ProductsLibrary products_library();

/// Allocates zero-filled device memory. Throws Error(kDeviceFailed) with the requested and the free size.
std::byte* allocate(int device, size_t bytes);
void release(int device, std::byte* memory) noexcept;
/// Fills device memory with zeros. Returns when it is done.
void clear(int device, std::byte* memory, size_t bytes);
/// Throws the error of allocate() that `bytes` are not free.
[[noreturn]] void throw_out_of_memory(int device, size_t bytes);

/// Allocates pinned host memory: copies from and to a device run at full speed, concurrently with other work.
std::byte* allocate_pinned(size_t bytes);
void release_pinned(std::byte* memory) noexcept;

/// Pins existing host memory, so copies and kernels of all devices can access it at the same address. Throws
/// Error(kDeviceFailed) with the size.
void pin(int device, std::byte* memory, size_t bytes);
void unpin(std::byte* memory) noexcept;

/// Synchronous copies. They are not ordered against work queued on streams.
void copy_to_device(int device, std::byte* destination, const void* source, size_t bytes);
void copy_to_host(int device, void* destination, const std::byte* source, size_t bytes);

}  // namespace hone::cuda
