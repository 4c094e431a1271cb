// Limits on what a computation may take, for tests: in processor time, so that a busy machine does not break them.
#pragma once

#include <algorithm>
#include <ctime>

namespace hone {

/// Seconds that all threads of this process have computed.
inline double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Seconds that the fastest of `runs` calls computes.
template <class Work>
double processor_seconds(const Work& work, int runs = 1) {
  double fastest = 1e9;
  for (int i = 0; i < runs; ++i) {
    const double begin = processor_seconds();
    work();
    fastest = std::min(fastest, processor_seconds() - begin);
  }
  return fastest;
}

}  // namespace hone
