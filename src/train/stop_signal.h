// Signals that ask a run to save and stop: SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 (batch systems send them before the end
// of a job), and SIGINT, of which a second one ends the program at once.
#pragma once

#include <csignal>
#include <cstdint>
#include <iterator>

namespace hone {

/// While it lives, the signals set a flag instead of ending the program. One that is ignored when this is made stays
/// ignored (nohup). SIGINT is answered on standard error.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The step that is under way, for the answer to SIGINT.
  void at_step(int64_t step) const;

  bool requested() const;
  /// "SIGTERM", …; "" if none came.
  const char* name() const;

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  struct sigaction before_[std::size(kSignals)] = {};
};

}  // namespace hone
