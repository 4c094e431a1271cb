// hone launch: training by several ranks of this machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace hone {

struct LaunchOptions {
  std::optional<int> ranks;
  std::string device = "auto";         ///< cpu, cuda, or auto: GPUs if there is one a rank
  std::vector<std::string> arguments;  ///< a verb and what follows it
};

/// Starts the ranks, which it gives a secret of their own; passes SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 on to
/// them, if they were not ignored (nohup). Gives the exit code of the first rank that failed, 4 for one that a signal
/// ended, 0 if all succeeded. Throws UserError: impossible numbers, too few GPUs.
int run_launch(const LaunchOptions& options);

}  // namespace hone
