// hone launch on several machines: writes a script, says what it does, and starts it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hone {

// What hone launch starts on several machines, and what the scripts that start it have in common.

/// Independent models: one a host (or a task of a job array), each on a shard of its own.
struct IndependentModels {
  int count = 0;                ///< 0: all ranks train one model
  std::string shards = "data";  ///< folder with training_data_node_{i}.csv or .jsonl of hone prepare --split-nodes
  std::string output_dir = "outputs";  ///< model i goes to OUTPUT_DIR/node_{i}
};

struct LaunchPlan {
  std::string program;               ///< path of hone, the same on all hosts
  std::vector<std::string> command;  ///< its arguments: train run.yaml …
  std::string directory;             ///< where it runs, the same on all hosts
  std::string logs = "logs";         ///< folder, relative to the directory
  int ranks_per_host = 1;
  int port = 29500;                      ///< of rank 0; of independent model i: port + i
  std::vector<std::string> environment;  ///< NAME=VALUE, for all ranks
  IndependentModels independent;
};

/// Throws UserError: no command, or a verb that ranks do not run together.
void check_ranks_command(const std::vector<std::string>& command);

/// What --device of hone launch means. Names of single GPUs are refused: each rank takes one of its own.
enum class RankDevice { kCpu, kCuda, kAuto };
RankDevice rank_device_named(const std::string& name);

/// Variables of CPU ranks: they see no GPU, whatever `device` in their configuration finds.
std::vector<std::pair<std::string, std::string>> cpu_rank_variables();

/// Throws UserError: what check_ranks_command does, numbers out of range, NAME=VALUE without a name.
void check_launch_plan(const LaunchPlan& plan);

/// Lines of a script of bash that set HONE_RUN_SECRET when it runs: what the user states, else fresh random digits. The
/// script itself never has it, nor has a command line.
std::string secret_lines();

/// As a shell's word: as it is if it has only harmless characters, else in single quotes.
std::string shell_word(std::string_view text);
/// The words of a command.
std::string shell_words(const std::vector<std::string>& words);

/// "hone train run.yaml", quoted.
std::string command_line(const LaunchPlan& plan);

/// A warning that these are independent models, as '#' lines of a script or plain lines: none is better for the others.
std::vector<std::string> independence_warning(int models);

// A batch script that runs a training on a cluster with SLURM.

struct SlurmOptions {
  std::string file = "hone.slurm";  ///< that is written
  std::string job_name = "hone";
  int nodes = 1;           ///< of one run; an independent model has one
  int gpus_per_node = -1;  ///< -1: as many as ranks; 0: none are asked for
  int cpus_per_rank = 0;   ///< 0: not stated
  std::string memory;      ///< of a node, as SLURM writes it (500G); "": not stated
  std::string time;        ///< D-HH:MM:SS; "": the partition's limit
  std::string partition, account;
};

/// One run on plan.ranks_per_host × nodes ranks, started by srun, which hone takes its rank from; or, with independent
/// models, an array of jobs of one node each, with ports, shards and folders of their own. Logs: LOGS/rank_{r}.log, of
/// models LOGS/node_{i}.log, and the job's own in LOGS/slurm_{job}.log. Throws UserError: text that is no value of an
/// #SBATCH line, numbers out of range.
std::string slurm_script(const LaunchPlan& plan, const SlurmOptions& options);

/// How to submit, watch and stop it; a line each.
std::string slurm_explanation(const LaunchPlan& plan, const SlurmOptions& options);

// A script that starts the ranks of a run over ssh.

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

/// Writes LOGS/launch.sh, prints which rank runs where, and becomes the script; with `dry_run` prints the script alone.
/// CPU ranks (with kAuto, where this machine has no GPU) are started by mpirun, where it is installed.
int run_launch_hosts(const LaunchPlan& plan, const SshHosts& hosts, RankDevice device, bool dry_run);

/// Writes options.file and prints how to submit it; with `dry_run` prints the script alone. A file that is there is
/// replaced only if `replace` is set.
int run_launch_slurm(const LaunchPlan& plan, const SlurmOptions& options, bool dry_run, bool replace);

}  // namespace hone
