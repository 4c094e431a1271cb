// Signals that make a run save and stop: SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 (sent by batch systems before the end of
// a job), and SIGINT. A second SIGINT ends the program at once.
#pragma once

#include <csignal>
#include <cstdint>
#include <iterator>

namespace hone {

/// Asks the run of this process, or the next one if none is running, to save and stop as for a signal.
/// Async-signal-safe.
void request_stop();
/// Takes that back. The end of a run does, too.
void withdraw_stop();
/// Whether a stop is asked for, by request_stop() or a signal.
bool stop_requested();
/// The name() with which the last run of this process ended.
const char* last_stop();

/// While an object exists, the signals set a flag instead of ending the program. A signal that is ignored at
/// construction stays ignored (nohup). SIGINT prints a line on standard error.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Sets the current step for that line.
  void at_step(int64_t step) const;

  bool requested() const;
  /// "SIGTERM", …, "its caller" after request_stop(); "" if nothing has asked for a stop.
  const char* name() const;

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  struct sigaction before_[std::size(kSignals)] = {};
};

}  // namespace hone
