// hone export: a trained model as one folder that other programs load.
#pragma once

#include <cstdint>
#include <string>

namespace hone {

struct ExportOptions {
  std::string input;   ///< a model's folder (or id in the local cache), or an adapter's
  std::string output;  ///< folder to write
  std::string model;   ///< base of an adapter; "" = the one that it names
  std::string format = "safetensors";
  std::string dtype;  ///< of the weights: float32 or bfloat16; "" = each as it is
  int64_t max_shard_size = 5'000'000'000;
  int threads = 0;     ///< 0: all cores
  bool force = false;  ///< replace the model in `output`
};

/// An adapter is merged into its base, with the checks of `hone merge`. A model is written again without what only
/// training needs, in other files or another dtype if asked for; what is quantised becomes bfloat16. Returns the exit
/// code.
int run_export(const ExportOptions& options);

}  // namespace hone
