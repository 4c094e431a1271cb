// A GPU that need not be there: memory on it has addresses and no bytes, and its streams run nothing. Dry passes on it
// measure what a run on a GPU would take.
#pragma once

#include "core/device.h"

namespace hone {

inline constexpr Device kPlannedGpu{DeviceKind::kCuda, -1};

inline bool is_planned(Device device) { return device.kind == DeviceKind::kCuda && device.index < 0; }

}  // namespace hone
