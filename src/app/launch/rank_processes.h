// The processes that hone launch starts and waits for.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace hone {

/// Variables of a process's environment; an empty value takes one away.
using Environment = std::vector<std::pair<std::string, std::string>>;

/// This program's file.
std::string own_program();
/// Where PATH has `program`, or "".
std::string find_program(const std::string& program);
/// A port that no program of this machine listens at.
int free_port();

/// Starts a program in a process group of its own, so that a terminal's Ctrl-C reaches the launcher alone; its input is
/// empty, and it is told to end if the launcher dies. Throws std::system_error.
pid_t start_process(const std::vector<std::string>& command, const Environment& environment);

/// While it lives, SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are kept for take() instead of ending the program;
/// those that were ignored before (nohup) stay ignored, here and in what start_process starts.
class CaughtSignals {
 public:
  CaughtSignals();
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;
  /// A signal that has come since, or 0.
  int take();

 private:
  std::vector<int> signals_;  // that are caught
};

}  // namespace hone
