// Runs a program to its end and keeps what it writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/launch/rank_processes.h"

namespace hone {

struct CapturedProcess {
  int status = 0;                    ///< as waitpid() has it
  bool timed_out = false;            ///< it was ended because it took longer than the limit
  int stopped_by = 0;                ///< the signal to this process for which it was ended, or 0
  double seconds = 0;                ///< until it had ended
  uint64_t peak_resident_bytes = 0;  ///< largest resident set of the program, or of one that it has waited for
  std::string out = {}, err = {};    ///< the last 16 MiB of each
};

/// Runs a program (start_process) until it ends, for at most `limit_s` seconds, or until `signals` has SIGTERM, SIGINT
/// or SIGHUP. To end it, sends SIGTERM, and SIGKILL if that has no effect in 10 seconds. Throws std::system_error if it
/// cannot be started.
CapturedProcess run_captured(const std::vector<std::string>& command, double limit_s, CaughtSignals& signals);

}  // namespace hone
