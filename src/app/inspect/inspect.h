// hone inspect: prints the contents of a model or adapter folder, from its headers.
#pragma once

#include <string>

namespace hone {

struct InspectOptions {
  std::string path;      ///< model folder, a name of the Hugging Face hub, or adapter folder
  bool tensors = false;  ///< list every tensor of the files
};

/// Prints architecture, sizes, parameters by group, files, tokenizer, a rendered chat, and names that work as patterns.
/// Reads no weights. Returns the exit code. Throws UserError for an invalid or unsupported folder.
int run_inspect(const InspectOptions& options);

}  // namespace hone
