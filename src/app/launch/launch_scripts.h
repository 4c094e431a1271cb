// hone launch on several machines: writes a script, says what it does, and starts it.
#pragma once

#include <string>

#include "app/launch/slurm_script.h"
#include "app/launch/ssh_script.h"

namespace hone {

/// Writes LOGS/launch.sh, prints which rank runs where, and becomes the script; with `dry_run` prints the script alone.
/// CPU ranks (with kAuto, where this machine has no GPU) are started by mpirun, where it is installed.
int run_launch_hosts(const LaunchPlan& plan, const SshHosts& hosts, RankDevice device, bool dry_run);

/// Writes options.file and prints how to submit it; with `dry_run` prints the script alone. A file that is there is
/// replaced only if `replace` is set.
int run_launch_slurm(const LaunchPlan& plan, const SlurmOptions& options, bool dry_run, bool replace);

}  // namespace hone
