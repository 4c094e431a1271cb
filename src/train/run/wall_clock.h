// Wall-clock seconds.
#pragma once

#include <chrono>

namespace hone {

using WallClock = std::chrono::steady_clock;

inline double seconds_since(WallClock::time_point begin) {
  return std::chrono::duration<double>(WallClock::now() - begin).count();
}

}  // namespace hone
