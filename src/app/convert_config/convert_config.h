// hone convert-config: converts a configuration of another tool to Hone's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hone {

struct ConvertOptions {
  std::string input;                ///< YAML, JSON, or a shell or Python script; "": flags only
  std::vector<std::string> flags;   ///< --name value; they have precedence over the file
  std::string from = "auto";        ///< the tool
  std::string output = "run.yaml";  ///< "-" = standard output
  int64_t devices = 0;              ///< devices that the tool ran on; 0: the number in the script's launcher, else 1
  bool accept_changes = false;      ///< write the result even if an omitted setting changes training
  bool force = false;               ///< replace an existing file
};

/// Translates, writes, and prints the result of each key. Returns the exit code: 2, without writing, if an omitted
/// setting would change training and accept_changes is not set.
int run_convert_config(const ConvertOptions& options);

}  // namespace hone
