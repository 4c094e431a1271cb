// hone launch: training by several ranks of this machine.
#pragma once

#include <string>
#include <vector>

namespace hone {

struct LaunchOptions {
  int ranks = 0;
  std::string device = "auto";         ///< cpu, cuda, or auto: GPUs if there is one a rank
  std::vector<std::string> arguments;  ///< a verb and what follows it
};

/// Starts the ranks, CPU ranks by mpirun, GPU ranks itself; passes SIGTERM, SIGINT and SIGHUP on to them. Gives the
/// exit code of the first rank that failed, 4 for one that a signal ended, 0 if all succeeded. Throws UserError:
/// impossible numbers, no mpirun, too few GPUs.
int run_launch(const LaunchOptions& options);

}  // namespace hone
