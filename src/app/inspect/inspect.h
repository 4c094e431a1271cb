// hone inspect: what a model or adapter folder holds, from its headers.
#pragma once

#include <string>

namespace hone {

struct InspectOptions {
  std::string path;      ///< model folder, Hugging Face id in the local cache, or adapter folder
  bool tensors = false;  ///< list every tensor of the files
};

/// Prints architecture, sizes, parameters by group, files, tokenizer, a rendered chat, and names that work as patterns.
/// Reads no weight. Returns the exit code; UserError for a broken or unsupported folder.
int run_inspect(const InspectOptions& options);

}  // namespace hone
