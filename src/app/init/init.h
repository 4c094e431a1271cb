// hone init: a commented configuration for a model folder, and with --new-model a folder with random weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "nn/decoder_config.h"
#include "params/parameter_store.h"

namespace hone {

// Thoughts in a model's template and in data: what hone init asks before it writes the template's switch.

struct ThinkingRows {
  std::string switch_name;    ///< of the template (text/thinking.h); "" = it has none
  int64_t rows = 0;           ///< chats that were read; 0 without data
  int64_t with_thoughts = 0;  ///< of them
  std::string problem = {};   ///< why the data were not read to their end
};

/// Looks at the template of the model in `directory` (empty: none there), and if it has a switch at all rows of `data`
/// ("": none). Data that cannot be read are a problem, not an error.
ThinkingRows find_thoughts(const std::filesystem::path& directory, const std::string& data);

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

// hone init --new-model: a checkpoint with random weights from a config.json.

struct NewModelOptions {
  std::string config;     ///< a config.json, or a folder that has one
  std::string output;     ///< the folder to write
  std::string tokenizer;  ///< folder whose tokenizer files are copied; "" = none
  std::string dtype;      ///< float32 or bfloat16; "" = what the config says, else bfloat16
  uint64_t seed = 42;
  int threads = 0;     ///< 0: all cores
  bool force = false;  ///< replace the model in `output`
};

/// As initialise_weights of params/random_weights.h, of weights in host memory; waits.
void initialise_weights(ParameterStore& store, double initializer_range, uint64_t seed, ThreadPool& pool);

/// Writes the folder and says what it holds. Returns the exit code. UserError for an unsupported config, a tokenizer
/// with more tokens than the embedding has rows, an output folder that is not empty.
int run_new_model(const NewModelOptions& options);

}  // namespace hone
