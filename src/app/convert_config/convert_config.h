// hone convert-config: a configuration of another tool as ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hone {

struct ConvertOptions {
  std::string input;                ///< YAML, JSON, or a shell or Python script; "" with flags alone
  std::vector<std::string> flags;   ///< --name value, which win over the file
  std::string from = "auto";        ///< the tool
  std::string output = "run.yaml";  ///< "-" = standard output
  int64_t devices = 0;              ///< that the tool ran on; 0: what the script's launcher says, else 1
  bool accept_changes = false;      ///< write the result though something that changes what is learnt is left out
  bool force = false;               ///< replace an existing file
};

/// Translates, writes, and prints what became of each key. Returns the exit code: 2 (and nothing is written) if
/// something would silently change what is learnt, unless accept_changes.
int run_convert_config(const ConvertOptions& options);

}  // namespace hone
