// Commands of shell scripts: the one that starts a training, with variables put in and its flags as a configuration.
#pragma once

#include <string>
#include <vector>

#include "app/config/config_reader.h"

namespace hone {

/// A word of a command and the line it was written on.
struct ShellWord {
  std::string text;
  std::string where;
};

/// A command that starts a training.
struct TrainingCommand {
  std::string program;                 ///< "qwen3_sft.py", "llamafactory-cli train", "tuning.sft_trainer"
  std::vector<ShellWord> launcher;     ///< what stands before: torchrun --nproc_per_node 8
  std::vector<ShellWord> arguments;    ///< what stands behind
  int64_t devices = 1;                 ///< that the launcher starts, if it says a number
  std::vector<ShellWord> environment;  ///< NAME=value of the script, in its order
};

/// By its ending: .yaml, .yml or .json.
bool is_config_file(const std::string& text);

/// Reads the words of a script: quotes, comments, continued lines, `A=b` and `export A=b`, arrays, $A, ${A}, ${A:-b}. A
/// variable that is not set there stays as ${A}; what a command would print ($(…)) stays as it is written. Returns the
/// command with the most flags. Throws UserError if there is none with a flag or a configuration file.
TrainingCommand read_shell_script(const std::string& text, const std::string& name);

/// Flags as a configuration: `--name value`, `--name=value`, `--name a b c` (a list), `--name` alone (true). Words that
/// belong to no flag and end in .yaml, .yml or .json are put into `files`; others are an error.
ConfigNode flags_as_config(const std::vector<ShellWord>& words, std::vector<ShellWord>& files);

}  // namespace hone
