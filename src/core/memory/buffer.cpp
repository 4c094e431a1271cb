#include "core/memory/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <utility>

#include "core/cpu/numa.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/planned_device.h"

namespace hone {

void throw_out_of_host_memory(size_t bytes) {
  throw Error(ExitCode::kDeviceFailed,
              fmt::format("the machine has no {:.2f} GB of memory left", static_cast<double>(bytes) / 1e9), "",
              "`hone estimate` shows what needs it and what would make it fit");
}

Buffer::Buffer(Device device, size_t bytes) : device_(device), size_(bytes) {
  if (bytes == 0) return;
  if (is_planned(device)) {
    data_ = kNoMemory;
    return;
  }
  if (device.kind == DeviceKind::kCuda) {
    data_ = cuda::allocate(device.index, bytes);
    return;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw_out_of_host_memory(bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);
  interleave_pages(memory, bytes);  // all threads read weights and activations
  data_ = static_cast<std::byte*>(memory);
}

void Buffer::reset() {
  if (is_planned(device_)) data_ = nullptr;
  if (data_ != nullptr && device_.kind == DeviceKind::kCuda) cuda::release(device_.index, data_);
  if (data_ != nullptr && device_.kind == DeviceKind::kCpu) munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

Tensor Buffer::tensor(Shape shape, DType dtype, size_t byte_offset) const {
  Tensor view{data_ + byte_offset, dtype, shape, device_};
  HONE_ASSERT(byte_offset + view.bytes() <= size_);
  return view;
}

}  // namespace hone
