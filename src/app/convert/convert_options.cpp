#include <CLI/CLI.hpp>

#include <memory>

#include "app/convert/convert.h"
#include "app/merge/merge.h"
#include "app/verbs.h"

namespace hone {

void add_export(CLI::App& app, Action& action) {
  CLI::App* verb =
      add_verb(app, "export", "A trained model as one folder, adapters merged; or a model or an adapter as GGUF",
               "  hone export out/run1 released\n"
               "  hone export out/full1/checkpoint-500 released --dtype bfloat16 --max-shard-size 2GB\n"
               "  hone export out/run1 released --weights fp8\n"
               "  hone export released released.gguf --type q8_0\n"
               "  hone export out/run1 adapter.gguf");
  auto options = std::make_shared<ExportOptions>();
  verb->add_option("INPUT", options->input, "folder of a model or an adapter")->required();
  add_output(verb, "OUTPUT", options->output, "folder to write, or a file .gguf")->required();
  verb->add_option("--model", options->model, "base of an adapter; default: the one that it names");
  verb->add_option("--format", options->format,
                   "safetensors or gguf (an adapter's LoRA alone); default: gguf if OUTPUT ends in .gguf");
  verb->add_option("--type", options->type,
                   "gguf: f32, f16, bf16, q8_0 or q4_0; default: the model's own, f32 of adapters");
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
  CLI::App* verb =
      add_verb(app, "convert", "Adapters in other layouts; sharded checkpoints and GGUF files as Hugging Face folders",
               "  hone convert out/run1 adapter --to sglang\n"
               "  hone convert model-Q4_K_M.gguf model\n"
               "  hone convert kt_adapter adapter --to split --model ./Qwen3-30B-A3B\n"
               "  hone convert out/checkpoint-500 converted --model ./Mixtral-8x7B-v0.1\n"
               "  hone convert out/checkpoint-500/pytorch_model_fsdp_0 adapter --model ./Qwen3-30B-A3B "
               "--lora-alpha 32");
  auto options = std::make_shared<WeightConversionOptions>();
  verb->add_option("INPUT", options->input,
                   "folder of an adapter, or of pytorch_model_fsdp_0, or that folder itself, or a GGUF file")
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
