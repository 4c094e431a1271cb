// hone convert and hone export: what training wrote, as files that other programs load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace hone {

struct WeightConversionOptions {
  std::string input, output;
  std::string model;                 ///< the pretrained model's folder, or Hugging Face id in the local cache
  std::string to;                    ///< layout of an adapter: split, target_parameters, kt or sglang; "" = as it is
  std::string dtype;                 ///< of a model's weights: float32 or bfloat16; "" = as in the checkpoint
  std::optional<double> lora_alpha;  ///< of an adapter whose checkpoint has no adapter_config.json
  int64_t max_shard_size = 5'000'000'000;
  bool force = false;  ///< replace what is in `output`
};

/// An adapter's folder is written in the layout `to`, where that is exact. Rank and alpha grow where the layout asks
/// for it (weights/adapter.h).
///
/// Converts a folder of torch.distributed.checkpoint (`pytorch_model_fsdp_0`, or a training checkpoint that has one):
/// a whole model into a Hugging Face folder in the pretrained model's layout, LoRA weights into a PEFT adapter. Returns
/// the exit code; UserError for what is damaged, does not fit the model or cannot be converted exactly.
int run_convert(const WeightConversionOptions& options);

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
