// Buffer: memory of a device with an owner.
#pragma once

#include "core/base/tensor.h"

namespace hone {

/// Throws Error(kDeviceFailed): the machine has no `bytes` left.
[[noreturn]] void throw_out_of_host_memory(size_t bytes);

/// Owns bytes on a device: zero-filled, aligned to kAlignment. Movable; freed on destruction. On a CPU, pages are
/// committed at the first write, so a large reservation costs nothing until it is used.
class Buffer {
 public:
  static constexpr size_t kAlignment = 4096;

  Buffer() = default;
  /// Throws Error(kDeviceFailed) with the size if the device has too little memory.
  Buffer(Device device, size_t bytes);
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  Device device() const { return device_; }
  void reset();

  /// A tensor over the first elements of the buffer.
  Tensor tensor(Shape shape, DType dtype, size_t byte_offset = 0) const;

 private:
  void swap(Buffer& other) noexcept;

  Device device_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hone
