#include <CLI/CLI.hpp>

#include <memory>

#include "app/convert/convert.h"
#include "app/merge/merge.h"
#include "app/verbs.h"

namespace hone {

void add_export(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "export", "A trained model as one folder: adapters merged, in files of a chosen size",
                            "  hone export out/run1 released\n"
                            "  hone export out/full1/checkpoint-500 released --dtype bfloat16 --max-shard-size 2GB\n"
                            "  hone export out/run1 released --weights fp8");
  auto options = std::make_shared<ExportOptions>();
  verb->add_option("INPUT", options->input, "folder of a model or an adapter")->required();
  add_output(verb, "OUTPUT", options->output, "folder to write")->required();
  verb->add_option("--model", options->model, "base of an adapter; default: the one that it names");
  verb->add_option("--format", options->format, "safetensors")->capture_default_str();
  verb->add_option("--dtype", options->dtype, "dtype of the weights: float32 or bfloat16; default: each as it is");
  verb->add_option("--weights", options->weights,
                   "fp8 or mxfp4: round matrices of layers to FP8 blocks, or experts of gpt-oss to MXFP4");
  add_base_rounding(verb, options->base_weight_dtype, options->base_weight_keep);
  verb->add_option("--max-shard-size", options->max_shard_size, "largest file, such as 5GB")
      ->transform(CLI::AsSizeValue(true));
  add_threads(verb, options->threads);
  add_force(verb, options->force, "replace the model in the output folder");
  verb->callback([=, &action] { action = [=] { return run_export(*options); }; });
}

void add_convert(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "convert", "Adapters in other layouts; sharded checkpoints as Hugging Face folders",
                            "  hone convert out/run1 adapter --to sglang\n"
                            "  hone convert kt_adapter adapter --to split --model ./Qwen3-30B-A3B\n"
                            "  hone convert out/checkpoint-500 converted --model ./Mixtral-8x7B-v0.1\n"
                            "  hone convert out/checkpoint-500/pytorch_model_fsdp_0 adapter --model ./Qwen3-30B-A3B "
                            "--lora-alpha 32");
  auto options = std::make_shared<WeightConversionOptions>();
  verb->add_option("INPUT", options->input, "folder of an adapter, or of pytorch_model_fsdp_0, or that folder itself")
      ->required();
  add_output(verb, "OUTPUT", options->output, "folder to write")->required();
  verb->add_option("--model", options->model,
                   "the base model: its names and layout are written; default: what the adapter names");
  verb->add_option("--to", options->to, "layout of an adapter: split, target_parameters, kt or sglang");
  verb->add_option("--dtype", options->dtype,
                   "dtype of a model's weights: float32 or bfloat16; default: the checkpoint's");
  verb->add_option("--lora-alpha", options->lora_alpha, "alpha of an adapter whose adapter_config.json is lost");
  verb->add_option("--max-shard-size", options->max_shard_size, "largest file of a model, such as 5GB")
      ->transform(CLI::AsSizeValue(true));
  add_force(verb, options->force, "replace the model in the output folder");
  verb->callback([=, &action] { action = [=] { return run_convert(*options); }; });
}

}  // namespace hone
