// hone convert and hone export: convert training results to files that other programs load, and GGUF files of others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace hone {

struct WeightConversionOptions {
  std::string input, output;
  std::string model;                 ///< the pretrained model's folder, or a name of the Hugging Face hub
  std::string to;                    ///< layout of an adapter: split, target_parameters, kt or sglang; "" = unchanged
  std::string dtype;                 ///< the dtype of a model's weights: float32 or bfloat16; "" = as in the checkpoint
  std::optional<double> lora_alpha;  ///< for an adapter whose checkpoint has no adapter_config.json
  int64_t max_shard_size = 5'000'000'000;
  bool force = false;  ///< replace what is in `output`
};

/// Writes an adapter's folder in the layout `to`, if that is exact. Rank and alpha grow if the layout requires it
/// (weights/adapter.h).
///
/// Converts a folder of torch.distributed.checkpoint (`pytorch_model_fsdp_0`, or a training checkpoint that has one):
/// a whole model to a Hugging Face folder in the pretrained model's layout, LoRA weights to a PEFT adapter. A GGUF file
/// becomes a Hugging Face folder (app/export/gguf_export.h). Returns the exit code. Throws UserError for input that is
/// damaged, does not match the model or cannot be converted exactly.
int run_convert(const WeightConversionOptions& options);

struct ExportOptions {
  std::string input;                        ///< a model's folder (or name on the hub), or an adapter's
  std::string output;                       ///< folder to write
  std::string model;                        ///< base of an adapter; "" = the base stated in its folder
  std::string format;                       ///< safetensors or gguf; "" = gguf if the output's name ends in .gguf
  std::string type;                         ///< gguf: f32, f16, bf16, q8_0 or q4_0; "" = as the files
  std::string dtype;                        ///< the dtype of the weights: float32 or bfloat16; "" = unchanged
  std::string base_weight_dtype = "dtype";  ///< as the next, of MergeOptions
  std::vector<std::string> base_weight_keep;
  std::string weights;  ///< fp8 or mxfp4: the format of matrices in the files; "" = dtype
  int64_t max_shard_size = 5'000'000'000;
  int threads = 0;     ///< 0: all cores
  bool force = false;  ///< replace the model in `output`
};

/// Merges an adapter into its base, with the checks of `hone merge`. Writes a model without files that only training
/// needs, with other shard sizes or another dtype if requested; quantised weights become bfloat16, or weights are
/// rounded to a quantised format, with the error of each tensor. With the format gguf, of a model or an adapter, as
/// app/export/gguf_export.h says. Returns the exit code.
int run_export(const ExportOptions& options);

}  // namespace hone
