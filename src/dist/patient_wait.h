// What transports of CPU ranks share: how they wait for data, and how they end.
#pragma once

#include <chrono>

#include "dist/control.h"

namespace hone {

/// One wait of a transport: it tries again without a pause as long as data came lately, then with pauses, and asks now
/// and then whether the group still lives.
class PatientWait {
 public:
  explicit PatientWait(Control& control) : control_(control) {}

  void moved() { last_moved_ = Clock::now(); }
  /// Nothing moved. Throws as Control::check() does.
  void pause();

 private:
  using Clock = std::chrono::steady_clock;

  Control& control_;
  Clock::time_point last_moved_ = Clock::now(), last_check_ = last_moved_;
};

/// Waits for the other ranks, if they live: a rank that ends early looks like a lost one to launchers, which then end
/// those that still save.
void end_together(Control& control) noexcept;

}  // namespace hone
