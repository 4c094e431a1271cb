// The time of the system's clock.
#pragma once

#include <chrono>

namespace hone {

/// Seconds since 1970.
inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace hone
