// HostBuffer: host memory for copies and kernels of a device. For a GPU it is pinned: copies run at the link's rate
// concurrently with other work, and kernels access it in place. For a CPU it is ordinary memory.
#pragma once

#include "core/memory/buffer.h"

namespace hone {

/// Owns zero-filled host memory for work on `device`. Movable; freed on destruction. Its tensors are on the CPU for
/// loading and saving; the kernels of a GPU use their addresses like any other.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// Commits all pages, with several threads if there are many. Throws Error(kDeviceFailed) with the size if the host
  /// has too little memory, or if the driver does not pin it.
  HostBuffer(Device device, size_t bytes);
  ~HostBuffer() { reset(); }
  HostBuffer(HostBuffer&& other) noexcept { swap(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    swap(other);
    return *this;
  }

  size_t size() const { return memory_.size(); }
  void reset();
  Tensor tensor(Shape shape, DType dtype, size_t byte_offset = 0) const {
    return memory_.tensor(shape, dtype, byte_offset);
  }

 private:
  void swap(HostBuffer& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(pinned_, other.pinned_);
  }

  Buffer memory_;
  bool pinned_ = false;
};

}  // namespace hone
