// HostBuffer: host memory that a device's copies and kernels reach. For a GPU it is pinned, so that copies run at the
// link's rate beside other work and kernels read and write it where it is; for a CPU it is memory like any other.
#pragma once

#include "core/buffer.h"

namespace hone {

/// Owns zero-filled host memory for work on `device`. Movable, freed on destruction. Tensors of it are on the CPU:
/// whoever loads and saves treats them so, and the kernels of a GPU take their address as they take any other.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// All pages are committed here, by several threads where there are many. Throws Error(kDeviceFailed) with the size
  /// where the host has no such memory, or the driver does not pin it.
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
