// SIGTERM and SIGINT ask a run to save and stop; a second SIGINT kills.
#pragma once

namespace hone {

/// While it lives, the signals set a flag instead of ending the program; after the first one they act as usual again.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const;
  /// "SIGTERM" or "SIGINT"; "" if none came.
  const char* name() const;
};

}  // namespace hone
