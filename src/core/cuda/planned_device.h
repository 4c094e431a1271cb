// A planned GPU, which need not exist: memory on it has addresses but no bytes, and its streams run nothing. Dry passes
// on it measure the memory of a run on a GPU, in builds without CUDA, too.
#pragma once

#include <cstddef>

#include "core/base/device.h"

namespace hone {

inline constexpr Device kPlannedGpu{DeviceKind::kCuda, -1};

inline bool is_planned(Device device) { return device.kind == DeviceKind::kCuda && device.index < 0; }

/// The address of memory that only plans have: there is nothing at it.
inline std::byte* const kNoMemory = reinterpret_cast<std::byte*>(4096);

/// What ops find on it, unless the limit on kernels (core/stream/process_kernels.h) is of a smaller GPU: a Hopper GPU.
struct PlannedGpu {
  static constexpr int kMultiprocessors = 132, kComputeCapability = 90;
  static constexpr size_t kL2Bytes = size_t{50} << 20, kSharedMemory = size_t{227} << 10;
};

}  // namespace hone
