// A planned GPU, which need not exist: memory on it has addresses but no bytes, and its streams run nothing. Dry passes
// on it measure the memory of a run on a GPU.
#pragma once

#include "core/device.h"

namespace hone {

inline constexpr Device kPlannedGpu{DeviceKind::kCuda, -1};

inline bool is_planned(Device device) { return device.kind == DeviceKind::kCuda && device.index < 0; }

}  // namespace hone
