// hone init: a commented configuration for a model folder.
#pragma once

#include <cstdint>
#include <string>

#include "app/init/thinking_rows.h"
#include "nn/decoder_config.h"

namespace hone {

struct InitOptions {
  std::string model;                ///< as find_model() takes it
  std::string method = "lora";      ///< lora | full
  std::string preset;               ///< a preset; "" = none
  std::string data;                 ///< a data set; "" = a placeholder to be replaced
  std::string output = "run.yaml";  ///< "-" = standard output
  bool force = false;               ///< replace an existing file
  bool needs_download = false;      ///< the model is a name alone
};

/// The text: every key a first run needs, each with a comment, adapted to the model and its data.
std::string initial_yaml(const InitOptions& options, const DecoderConfig& model, const ThinkingRows& thoughts = {});

/// Writes it. Returns the exit code; UserError for a model that cannot be trained or a file that exists.
int run_init(const InitOptions& options);

}  // namespace hone
