// A script that starts the ranks of a run over ssh.
#pragma once

#include <string>
#include <vector>

#include "app/launch/launch_plan.h"

namespace hone {

struct SshHosts {
  std::vector<std::string> hosts;            ///< as ssh knows them: name or user@name
  std::string master;                        ///< name of the first host for the others; "": as ssh knows it
  std::string ssh = "ssh -o BatchMode=yes";  ///< called with a host and a command line for its shell
};

/// Throws UserError: no hosts, one twice, a name that is none.
void check_hosts(const SshHosts& hosts);

/// For GPU ranks, and for independent models. Rank r is process r % n of host r / n (n = plan.ranks_per_host); a model
/// is hone launch -n n on its host. The script runs in the foreground: each rank's output goes to LOGS/rank_{r}.log, a
/// model's to LOGS/node_{i}.log, on this machine; whatever ends the script ends the ranks, because each watches its ssh
/// connection; a minute after a rank has failed the others are ended, too. It exits with the code of the first that
/// failed.
std::string ssh_script(const LaunchPlan& plan, const SshHosts& hosts);

/// For CPU ranks, whose sums go through MPI: mpirun starts them over ssh. Output goes to the terminal and to
/// LOGS/ranks.log.
std::string mpirun_script(const LaunchPlan& plan, const SshHosts& hosts);

/// Which ranks run where, with which port and log; a line each.
std::string ssh_explanation(const LaunchPlan& plan, const SshHosts& hosts);
std::string mpirun_explanation(const LaunchPlan& plan, const SshHosts& hosts);

}  // namespace hone
