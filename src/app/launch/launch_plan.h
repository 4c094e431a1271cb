// What hone launch starts on several machines, and what the scripts that start it have in common.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hone {

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

}  // namespace hone
