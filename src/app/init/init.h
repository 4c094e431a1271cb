// hone init: a commented configuration for a model folder, and with --new-model a folder with random weights.
#pragma once

#include <cstdint>
#include <string>

#include "app/init/data_facts.h"
#include "nn/decoder_config.h"
#include "params/parameter_store.h"

namespace hone {

struct InitOptions {
  std::string model;                ///< as find_model() takes it
  std::string method = "lora";      ///< lora | qlora | full
  std::string preset;               ///< a preset; "" = none
  std::string data;                 ///< a path, or a data set of the hub; "" = a placeholder to be replaced
  std::string data_name;            ///< the configuration of a data set of the hub
  std::string data_split;           ///< its split, or a folder's; "" = train of the hub's
  std::string output = "run.yaml";  ///< "-" = standard output
  bool force = false;               ///< replace an existing file
  bool needs_download = false;      ///< only the model's name is known
  bool has_mxfp4 = false;           ///< the model's files have weights of 4 bits, which qlora keeps
};

/// The text of the configuration: all keys that a first run needs, with comments, adapted to the model and its data.
std::string initial_yaml(const InitOptions& options, const DecoderConfig& model, const DataFacts& data = {});

/// Writes the configuration and returns the exit code. Throws UserError for an unsupported model or an existing file.
int run_init(const InitOptions& options);

// hone init --new-model: a checkpoint with random weights from a config.json.

struct NewModelOptions {
  std::string config;     ///< a config.json, or a folder that has one
  std::string output;     ///< the folder to write
  std::string tokenizer;  ///< folder whose tokenizer files are copied; "" = none
  std::string dtype;      ///< float32 or bfloat16; "" = the config's dtype, else bfloat16
  uint64_t seed = 42;
  int threads = 0;     ///< 0: all cores
  bool force = false;  ///< replace the model in `output`
};

/// Like initialise_weights of params/random_weights.h, for weights in host memory. Waits for completion.
void initialise_weights(ParameterStore& store, double initializer_range, uint64_t seed, ThreadPool& pool);

/// Writes the folder, prints its contents and returns the exit code. Throws UserError for an unsupported config, a
/// tokenizer with more tokens than rows of the embedding, or an output folder that is not empty.
int run_new_model(const NewModelOptions& options);

}  // namespace hone
