// A time by which something must have happened.
#pragma once

#include <algorithm>
#include <chrono>

namespace hone {

class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  /// Seconds, from 0.
  double left() const { return std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count()); }
  bool passed() const { return left() == 0; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
};

}  // namespace hone
