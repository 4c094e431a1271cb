// hone init --new-model: a checkpoint with random weights from a config.json.
#pragma once

#include <cstdint>
#include <string>

#include "params/parameter_store.h"

namespace hone {

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
