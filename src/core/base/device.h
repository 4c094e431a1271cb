// The device of memory and of work.
#pragma once

#include <compare>

namespace hone {

enum class DeviceKind { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  auto operator<=>(const Device&) const = default;
};

}  // namespace hone
