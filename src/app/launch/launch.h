// hone launch: starts several ranks on this machine or on others.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/launch_scripts.h"

namespace hone {

struct LaunchOptions {
  std::optional<int> ranks;
  std::string device = "auto";                ///< cpu, cuda, or auto: GPUs if there is one per rank
  std::vector<std::string> arguments;         ///< a verb and its arguments
  std::function<void(int ranks)> check = {};  ///< called before ranks start; may throw UserError
};

/// Starts the ranks with a new secret and forwards SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 to them, except signals
/// that are ignored (nohup). Returns the exit code of the first rank that failed (4 if a signal ended it), or 0. Throws
/// UserError for impossible numbers or too few GPUs.
int run_launch(const LaunchOptions& options);

// Ranks on other machines.

struct LaunchElsewhere {
  LaunchPlan plan;
  SshHosts ssh;
  SlurmOptions slurm_options;
  bool slurm = false;
  bool dry_run = false;
  bool replace = false;

  /// Whether an option was given that ranks of this machine alone do not use.
  bool wanted() const { return slurm || dry_run || !ssh.hosts.empty() || plan.independent.count > 0; }
};

/// Returns the exit code, or replaces this process by the script that starts the ranks. `ranks`: per host, default 1.
int run_launch_elsewhere(LaunchElsewhere elsewhere, std::optional<int> ranks, const std::string& device,
                         const std::vector<std::string>& arguments);

}  // namespace hone
