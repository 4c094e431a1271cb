// Finds the command of a shell script that starts a training, expands its variables, and reads its flags as a
// configuration.
#pragma once

#include <string>
#include <vector>

#include "config/config_reader.h"

namespace hone {

/// A word of a command and the line it was written on.
struct ShellWord {
  std::string text;
  std::string where;
};

/// A command that starts a training.
struct TrainingCommand {
  std::string program;                 ///< "qwen3_sft.py", "llamafactory-cli train", "tuning.sft_trainer"
  std::vector<ShellWord> launcher;     ///< the words before it: torchrun --nproc_per_node 8
  std::vector<ShellWord> arguments;    ///< the words after it
  int64_t devices = 1;                 ///< processes that the launcher starts, if it states a number
  std::vector<ShellWord> environment;  ///< NAME=value of the script, in order
};

/// Whether a file name, with the variables of the environment, ends in .yaml, .yml or .json.
bool is_config_file(const std::string& written);

/// Reads the words of a script: quotes, comments, continued lines, `A=b` and `export A=b`, arrays, $A, ${A}, ${A:-b}. A
/// variable that the script does not set remains ${A} or ${A:-b}, for expand_environment(); a command substitution
/// ($(…)) does not change. No shell runs. Returns the command with the most flags. Throws UserError if no command has a
/// flag or a configuration file.
TrainingCommand read_shell_script(const std::string& text, const std::string& name);

/// Reads flags as a configuration: `--name value`, `--name=value`, `--name a b c` (a list), `--name` (true). Words
/// without a flag that end in .yaml, .yml or .json are appended to `files`; other words are an error.
ConfigNode flags_as_config(const std::vector<ShellWord>& words, std::vector<ShellWord>& files);

}  // namespace hone
