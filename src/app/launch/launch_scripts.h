// hone launch on several machines: writes a script, explains it, and starts it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hone {

// The plan of a launch on several machines, and functions that all scripts use.

/// Independent models: one per host (or task of a job array), each with its own shard of the data.
struct IndependentModels {
  int count = 0;                ///< 0: all ranks train one model
  std::string shards = "data";  ///< folder with training_data_node_{i}.csv or .jsonl of hone prepare --split-nodes
  std::string output_dir = "outputs";  ///< model i goes to OUTPUT_DIR/node_{i}
};

struct LaunchPlan {
  std::string program;               ///< path of hone, the same on all hosts
  std::vector<std::string> command;  ///< its arguments: train run.yaml …
  std::string directory;             ///< working directory, the same on all hosts
  std::string logs = "logs";         ///< folder, relative to the directory
  int ranks_per_host = 1;
  int port = 29500;                      ///< rank 0's; independent model i uses port + i
  std::vector<std::string> environment;  ///< NAME=VALUE, for all ranks
  IndependentModels independent;
};

/// Throws UserError if there is no command, or if its verb does not support several ranks.
void check_ranks_command(const std::vector<std::string>& command);

/// The meaning of --device of hone launch. Names of single GPUs are refused: each rank takes its own GPU.
enum class RankDevice { kCpu, kCuda, kAuto };
RankDevice rank_device_named(const std::string& name);

/// Variables of CPU ranks, which hide GPUs from them.
std::vector<std::pair<std::string, std::string>> cpu_rank_variables();

/// Throws UserError as check_ranks_command does, and for numbers out of range and NAME=VALUE without a name.
void check_launch_plan(const LaunchPlan& plan);

/// Lines of a bash script that set HONE_RUN_SECRET at run time: the user's secret, else random digits. Neither the
/// script nor a command line contains the secret.
std::string secret_lines();

/// "hone train run.yaml", quoted.
std::string command_line(const LaunchPlan& plan);

/// The lines of a warning that the models are independent: no model learns from the data of another.
std::vector<std::string> independence_warning(int models);

// The batch script of a training on a cluster with SLURM.

struct SlurmOptions {
  std::string file = "hone.slurm";  ///< the file to write
  std::string job_name = "hone";
  int nodes = 1;           ///< for one run; an independent model has one node
  int gpus_per_node = -1;  ///< -1: one per rank; 0: no GPUs are requested
  int cpus_per_rank = 0;   ///< 0: not stated
  std::string memory;      ///< for each node, in SLURM's notation (500G); "": not stated
  std::string time;        ///< D-HH:MM:SS; "": the partition's limit
  std::string partition, account;
};

/// One run with plan.ranks_per_host × nodes ranks, started by srun; or, with independent models, an array of one-node
/// jobs with their own ports, shards and folders. Logs: LOGS/rank_{r}.log, for models LOGS/node_{i}.log, and the job's
/// log LOGS/slurm_{job}.log. Throws UserError for text that cannot be a value of an #SBATCH line, and for numbers out
/// of range.
std::string slurm_script(const LaunchPlan& plan, const SlurmOptions& options);

/// Lines that explain how to submit, watch and stop the job.
std::string slurm_explanation(const LaunchPlan& plan, const SlurmOptions& options);

// A script that starts the ranks of a run over ssh.

struct SshHosts {
  std::vector<std::string> hosts;            ///< destinations for ssh: name or user@name
  std::string master;                        ///< name of the first host for the other hosts; "": ssh's name
  std::string ssh = "ssh -o BatchMode=yes";  ///< called with a host and a command line for its shell
};

/// Throws UserError for an empty list, a host that is listed twice, or an invalid name.
void check_hosts(const SshHosts& hosts);

/// For the ranks of a run, and for independent models. Rank r is process r % n of host r / n (n = plan.ranks_per_host);
/// a model is hone launch -n n on its host. The script runs in the foreground and writes each rank's output to
/// LOGS/rank_{r}.log, a model's to LOGS/node_{i}.log, on this machine. Ranks watch their ssh connections and end when
/// the script ends. One minute after a rank has failed, the script ends the other ranks. It exits with the code of the
/// first rank that failed.
std::string ssh_script(const LaunchPlan& plan, const SshHosts& hosts);

/// Lines that list each rank's host, port and log.
std::string ssh_explanation(const LaunchPlan& plan, const SshHosts& hosts);

/// Writes LOGS/launch.sh, prints the hosts of the ranks, and replaces this process by the script; with `dry_run` only
/// prints the script. If LOGS has files of an earlier launch, the folder is LOGS-2, LOGS-3 and so on.
int run_launch_hosts(const LaunchPlan& plan, const SshHosts& hosts, bool dry_run);

/// Writes options.file and prints how to submit it; with `dry_run` only prints the script. Replaces an existing file
/// only if `replace` is set.
int run_launch_slurm(const LaunchPlan& plan, const SlurmOptions& options, bool dry_run, bool replace);

}  // namespace hone
