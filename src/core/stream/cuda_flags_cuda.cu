#include "core/cuda/cuda_driver_functions.h"
#include "core/stream/cuda_flags.h"
#include "core/stream/flags.h"

namespace hone::cuda {

namespace {

struct Driver {
  decltype(&cuStreamWriteValue32) write = nullptr;
  decltype(&cuStreamWaitValue32) wait = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
};

const Driver& driver() {
  static const Driver found = [] {
    Driver functions;
    find_driver_function(functions.write, "cuStreamWriteValue32");
    find_driver_function(functions.wait, "cuStreamWaitValue32");
    find_driver_function(functions.attribute, "cuDeviceGetAttribute");
    return functions;
  }();
  return found;
}

CUdeviceptr address(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

/// A thread for each flag. Other devices of the host write them.
__global__ void poll_flags(const std::byte* first, int except, uint32_t value) {
  if (static_cast<int>(threadIdx.x) == except) return;
  const std::byte* const flag = first + threadIdx.x * kFlagBytes;
  uint32_t now = 0;
  while (true) {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(now) : "l"(flag) : "memory");
    if (static_cast<int32_t>(now - value) >= 0) return;
    __nanosleep(200);
  }
}

}  // namespace

bool has_flags(int device) {
  int supported = 0;
  return driver().attribute(&supported, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device) == CUDA_SUCCESS &&
         supported != 0;
}

void write_flag(void* stream, std::byte* flag, uint32_t value) {
  check_driver(driver().write(static_cast<CUstream>(stream), address(flag), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "writing a flag");
}

void await_flag(void* stream, const std::byte* flag, uint32_t value) {
  check_driver(driver().wait(static_cast<CUstream>(stream), address(flag), value, CU_STREAM_WAIT_VALUE_GEQ),
               "waiting for a flag");
}

void await_flags(void* stream, const std::byte* first, int count, int except, uint32_t value) {
  poll_flags<<<1, static_cast<unsigned>(count), 0, static_cast<cudaStream_t>(stream)>>>(first, except, value);
  check_launch("poll_flags");
}

void set_flags(int device, std::byte* first, size_t count, uint32_t value) {
  check(cudaSetDevice(device), "selecting a GPU");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  for (size_t i = 0; i < count; ++i) write_flag(stream, first + i * kFlagBytes, value);
  cudaStreamDestroy(stream);  // after its work
}

}  // namespace hone::cuda
