// Copies between host memory and tensors on any device, for code between steps: loading, saving, tests. They are not
// ordered against work queued on streams; synchronize first if that matters.
#pragma once

#include <cstring>

#include "core/base/tensor.h"
#include "core/cuda/cuda_device.h"

namespace hone {

/// Writes the first `bytes` of `destination`.
inline void copy_from_host(const Tensor& destination, const void* source, size_t bytes) {
  HONE_ASSERT(bytes <= destination.bytes());
  if (bytes == 0) return;
  if (destination.device.kind == DeviceKind::kCpu) {
    std::memcpy(destination.data, source, bytes);
  } else {
    cuda::copy_to_device(destination.device.index, destination.data, source, bytes);
  }
}

/// Reads all of `source`.
inline void copy_to_host(void* destination, const Tensor& source) {
  if (source.bytes() == 0) return;
  if (source.device.kind == DeviceKind::kCpu) {
    std::memcpy(destination, source.data, source.bytes());
  } else {
    cuda::copy_to_host(source.device.index, destination, source.data, source.bytes());
  }
}

}  // namespace hone
