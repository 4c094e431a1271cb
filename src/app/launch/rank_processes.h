// The processes that hone launch starts and waits for.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace hone {

/// Changes of a process's environment; an empty value removes the variable.
using Environment = std::vector<std::pair<std::string, std::string>>;

/// The path of this program.
std::string own_program();
/// A port at which no program of this machine listens.
int free_port();

/// Descriptors of a process's output; -1: that of this process.
struct ProcessOutput {
  int out = -1, err = -1;
};

/// Starts a program in its own process group, so that a terminal's Ctrl-C reaches only the launcher. Its input is
/// empty, and it gets a signal if the launcher dies. Throws std::system_error.
pid_t start_process(const std::vector<std::string>& command, const Environment& environment,
                    const ProcessOutput& output = {});

/// During its lifetime, SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are stored for take() instead of ending the
/// program. Signals that were ignored before (nohup) stay ignored, here and in started processes.
class CaughtSignals {
 public:
  CaughtSignals();
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;
  /// A signal received since the last call, or 0.
  int take();

 private:
  std::vector<int> signals_;  // the caught signals
};

}  // namespace hone
