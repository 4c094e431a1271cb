// hone launch: training by several ranks of this machine, or of others.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/launch_scripts.h"

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

// The options of hone launch that start ranks on other machines.

struct LaunchElsewhere {
  LaunchPlan plan;
  SshHosts ssh;
  SlurmOptions slurm_options;
  bool slurm = false;
  bool dry_run = false;
  bool replace = false;

  /// Whether something was asked for that the ranks of this machine alone do not have.
  bool wanted() const { return slurm || dry_run || !ssh.hosts.empty() || plan.independent.count > 0; }
};

/// Adds --hosts, --slurm, --independent and what belongs to them.
std::shared_ptr<LaunchElsewhere> add_launch_elsewhere(CLI::App* verb);

/// Returns the exit code, or becomes the script that starts the ranks. `ranks`: of each host; default: one.
int run_launch_elsewhere(LaunchElsewhere elsewhere, std::optional<int> ranks, const std::string& device,
                         const std::vector<std::string>& arguments);

}  // namespace hone
