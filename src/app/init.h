// hone init: a commented configuration for a model folder.
#pragma once

#include <cstdint>
#include <string>

#include "nn/decoder_config.h"

namespace hone {

struct InitOptions {
  std::string model;                ///< model folder, or Hugging Face id in the local cache
  std::string method = "lora";      ///< lora | full
  std::string preset;               ///< a preset; "" = none
  std::string data;                 ///< a data set; "" = a placeholder to be replaced
  std::string output = "run.yaml";  ///< "-" = standard output
  bool force = false;               ///< replace an existing file
};

/// The text: every key a first run needs, each with a comment, adapted to the model.
std::string initial_yaml(const InitOptions& options, const DecoderConfig& model);

/// Writes it. Returns the exit code; UserError for a model that cannot be trained or a file that exists.
int run_init(const InitOptions& options);

}  // namespace hone
