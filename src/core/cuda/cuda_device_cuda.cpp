#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "core/cuda/cuda_check.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/nvml.h"

namespace hone::cuda {

bool built() { return true; }

std::string built_architectures() { return HONE_CUDA_ARCHITECTURES; }

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clear the error: a machine without a GPU is not a failure
    return 0;
  }
  return count;
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status == cudaSuccess && count > 0) return "";
  if (status != cudaErrorInsufficientDriver) return "the NVIDIA driver shows no GPU";
  const Versions found = versions();
  const std::unique_ptr<Nvml> nvml = Nvml::open();
  return driver_problem(nvml ? nvml->driver_version() : "", found.driver_cuda, found.runtime);
}

bool driver_is_too_old() {
  int count = 0;
  const bool insufficient = cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver;
  cudaGetLastError();
  return insufficient && !versions().driver_cuda.empty();
}

DeviceInfo device_info(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "reading a GPU's properties");
  DeviceInfo info{.name = properties.name,
                  .major = properties.major,
                  .minor = properties.minor,
                  .multiprocessors = properties.multiProcessorCount,
                  .l2_bytes = static_cast<size_t>(properties.l2CacheSize),
                  .shared_memory = properties.sharedMemPerBlockOptin};
  std::array<char, 32> bus{};
  check(cudaDeviceGetPCIBusId(bus.data(), bus.size(), index), "reading a GPU's properties");
  info.pci_bus_id = bus.data();
  return info;
}

MemoryCount memory_count(int index) {
  MemoryCount memory;
  cudaError_t status = cudaSetDevice(index);
  if (status == cudaSuccess) status = cudaMemGetInfo(&memory.free, &memory.total);
  if (status != cudaSuccess) cudaGetLastError();  // clear the error: the caller may take another GPU
  check(status, "reading a GPU's memory");
  return memory;
}

Versions versions() {
  const auto cuda_text = [](int version) {
    return version == 0 ? "" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  };
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return {cuda_text(driver), cuda_text(runtime)};
}

void throw_out_of_memory(int device, size_t bytes) {
  const MemoryCount memory = memory_count(device);
  throw Error(ExitCode::kDeviceFailed,
              fmt::format("the GPU has no {:.2f} GB of memory left", static_cast<double>(bytes) / 1e9),
              fmt::format("{}: {:.2f} GB of {:.2f} GB are free", device_info(device).name,
                          static_cast<double>(memory.free) / 1e9, static_cast<double>(memory.total) / 1e9),
              "`hone estimate` shows what needs it and what would make it fit");
}

std::byte* allocate(int device, size_t bytes) {
  check(cudaSetDevice(device), "selecting a GPU");
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) {
    cudaGetLastError();
    throw_out_of_memory(device, bytes);
  }
  clear(device, static_cast<std::byte*>(memory), bytes);
  return static_cast<std::byte*>(memory);
}

void clear(int device, std::byte* memory, size_t bytes) {
  check(cudaSetDevice(device), "selecting a GPU");
  check(cudaMemset(memory, 0, bytes), "clearing memory");
  // Hone's streams do not wait for the default stream, which clears the memory.
  check(cudaStreamSynchronize(cudaStreamLegacy), "clearing memory");
}

void release(int device, std::byte* memory) noexcept {
  cudaSetDevice(device);
  cudaFree(memory);
}

std::byte* allocate_pinned(size_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, bytes), "allocating pinned host memory");
  return static_cast<std::byte*>(memory);
}

void release_pinned(std::byte* memory) noexcept { cudaFreeHost(memory); }

void pin(int device, std::byte* memory, size_t bytes) {
  check(cudaSetDevice(device), "selecting a GPU");
  const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw Error(ExitCode::kDeviceFailed,
              fmt::format("the driver does not pin {:.2f} GB of host memory: {}", static_cast<double>(bytes) / 1e9,
                          cudaGetErrorString(error)),
              "", "offload less (cpu_offload), or raise the limit of locked memory (ulimit -l)");
}

void unpin(std::byte* memory) noexcept { cudaHostUnregister(memory); }

void copy_to_device(int device, std::byte* destination, const void* source, size_t bytes) {
  check(cudaSetDevice(device), "selecting a GPU");
  check(cudaMemcpy(destination, source, bytes, cudaMemcpyHostToDevice), "copying to the GPU");
  // A copy from pageable memory may still be in progress.
  check(cudaStreamSynchronize(cudaStreamLegacy), "copying to the GPU");
}

void copy_to_host(int device, void* destination, const std::byte* source, size_t bytes) {
  check(cudaSetDevice(device), "selecting a GPU");
  check(cudaMemcpy(destination, source, bytes, cudaMemcpyDeviceToHost), "copying from the GPU");
}

}  // namespace hone::cuda
