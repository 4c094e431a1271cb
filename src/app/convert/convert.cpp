#include "app/convert/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include "app/export/gguf_export.h"
#include "app/inference/inference_model.h"
#include "app/merge/merge.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "params/adapter.h"
#include "params/expert_parts.h"
#include "report/humanise.h"
#include "session/loaded_model.h"
#include "session/model_path.h"
#include "weights/adapter_folder.h"
#include "weights/card_file.h"
#include "weights/gguf_file.h"
#include "weights/model_folder.h"
#include "weights/quantised_model.h"
#include "weights/sharded_conversion.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShardedFolder = "pytorch_model_fsdp_";

/// The folder itself, or the only pytorch_model_fsdp_* in it; empty if there is none.
fs::path sharded_folder(const fs::path& input) {
  if (ShardedCheckpoint::is_one(input)) return input;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(input)) {
    const bool named = entry.path().filename().string().starts_with(kShardedFolder);
    if (named && ShardedCheckpoint::is_one(entry.path())) found.push_back(entry.path());
  }
  if (found.size() > 1) {
    throw UserError(fmt::format("the folder has {} sharded models", found.size()), input.string(),
                    fmt::format("name one of them, such as {}", found.front().string()));
  }
  return found.empty() ? fs::path() : found.front();
}

void convert_sharded_model(const WeightConversionOptions& options, const ShardedCheckpoint& checkpoint,
                           LoadedModel& model, const fs::path& output, FileChecksums& checksums) {
  SaveOptions save;
  save.checksums = &checksums;
  save.max_shard_size = options.max_shard_size;
  save.dtype = parse_weight_dtype(options.dtype, "convert");
  copy_model_files(model.directory(), output);
  if (save.dtype) write_config_dtype(output, *save.dtype);
  write_model(checkpoint, model.store(), model.checkpoint(), model.map(), output, save);
  // Read the result again as a checkpoint.
  const Checkpoint written = Checkpoint::open(output);
  model.map_of(written);
}

/// The run's adapter_config.json, from the checkpoint or its parent folder.
std::optional<Json> adapter_config_beside(const fs::path& sharded) {
  for (const fs::path& folder : {sharded, sharded / ".."}) {
    std::ifstream file(folder / "adapter_config.json");
    if (!file) continue;
    const Json json = parse_json(file);
    if (!json.is_object()) {
      throw UserError("adapter_config.json is not a JSON object", (folder / "adapter_config.json").string());
    }
    return json;
  }
  return std::nullopt;
}

void convert_sharded_adapter(const WeightConversionOptions& options, const ShardedCheckpoint& checkpoint,
                             LoadedModel& model, const fs::path& output) {
  std::optional<Json> config = adapter_config_beside(checkpoint.directory());
  if (!config && !options.lora_alpha) {
    throw UserError("the checkpoint has LoRA weights and no adapter_config.json, so their scaling is not known",
                    checkpoint.directory().string(), "state the run's lora_alpha with --lora-alpha");
  }
  const std::optional<int64_t> rank = write_adapter(checkpoint, output);
  const bool written_by_run = config.has_value();
  if (!config) {
    if (!rank) {
      throw UserError("the LoRA weights do not have a common rank, and adapter_config.json is missing",
                      checkpoint.directory().string(), "copy the run's adapter_config.json next to the checkpoint");
    }
    config = Json{{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"}, {"r", *rank}, {"bias", "none"}};
    (*config)["peft_version"] = "0.21.0";
  }
  if (options.lora_alpha) (*config)["lora_alpha"] = *options.lora_alpha;
  (*config)["base_model_name_or_path"] = options.model;
  (*config)["inference_mode"] = true;
  write_text_file(output / "adapter_config.json", config->dump(2) + "\n");
  // Throws with the name of a tensor that the model does not have.
  model.set_trainable(TrainableOptions::nothing(output));
  if (written_by_run) return;
  // What has adapters is known only now, and where PEFT names it: a router's and fused experts' are target_parameters.
  write_adapter_config(output, model.store(),
                       {.lora = *model.lora(), .layout = AdapterLayout::kAsTrained, .base_model = options.model});
}

AdapterLayout parse_layout(const std::string& name) {
  const std::pair<const char*, AdapterLayout> known[] = {{"split", AdapterLayout::kSplit},
                                                         {"target_parameters", AdapterLayout::kTargetParameters},
                                                         {"shared", AdapterLayout::kTargetParameters},
                                                         {"kt", AdapterLayout::kKt},
                                                         {"sglang", AdapterLayout::kSglang},
                                                         {"vllm", AdapterLayout::kSplit}};
  for (const auto& [text, layout] : known) {
    if (name == text) return layout;
  }
  throw UserError(name.empty() ? "the layout is not named" : fmt::format("'{}' is not a layout of adapters", name),
                  "--to", "use split (PEFT and vLLM), target_parameters (PEFT), kt (KTransformers) or sglang");
}

/// Refuses per-expert names for a model whose files do not have them: PEFT could not load the adapter.
void require_expert_names(const ParameterStore& store, AdapterLayout layout) {
  if (layout != AdapterLayout::kSplit) return;
  for (const Parameter& parameter : store.all()) {
    if (!is_experts(parameter) || parameter.adapters().empty() || has_expert_files(parameter)) continue;
    throw UserError(
        "the model's files have one tensor for all experts of a layer, so they do not have per-expert names",
        parameter.name(), "use --to target_parameters for PEFT, kt or sglang");
  }
}

void convert_adapter(const WeightConversionOptions& options, const fs::path& output) {
  const AdapterLayout layout = parse_layout(options.to);
  std::string base = options.model;
  if (base.empty()) base = base_of_adapter(options.input);
  LoadedModel model(resolve_model_path(base), DType::kF32, dense_format(), vocab_rows_of_adapter(options.input));
  model.set_trainable(TrainableOptions::nothing(options.input));
  for (const std::string& warning : model.adapter_warnings()) print_text(fmt::format("warning: {}\n", warning));
  require_expert_names(model.store(), layout);
  model.store().allocate_trainable_values(Device{});  // the base model's weights are not read
  load_adapter(options.input, model.store());
  write_directory(output, [&](const fs::path& temporary, FileChecksums& checksums) {
    copy_model_files(options.input, temporary);
    save_adapter(temporary, model.store(),
                 {.lora = *model.lora(), .layout = layout, .base_model = base, .checksums = &checksums});
  });
  print_text(fmt::format("{}: written as {}\n", output.string(), options.to));
}

void require_shard_size(int64_t bytes) {
  if (bytes < 1) throw UserError("a file of weights would hold no byte", "--max-shard-size", "give a size such as 5GB");
}

int convert_gguf(const WeightConversionOptions& options) {
  const std::pair<const char*, bool> others[] = {{"--model", !options.model.empty()},
                                                 {"--to", !options.to.empty()},
                                                 {"--lora-alpha", options.lora_alpha.has_value()}};
  for (const auto& [option, given] : others) {
    if (given) throw UserError("this is not for GGUF files", option, "leave it out");
  }
  require_shard_size(options.max_shard_size);
  return run_gguf_import({options.input, options.output, options.dtype, options.max_shard_size, options.force});
}

}  // namespace

int run_convert(const WeightConversionOptions& given) {
  if (fs::is_regular_file(given.input) && GgufFile::is_one(given.input)) return convert_gguf(given);
  WeightConversionOptions options = given;
  options.input = resolve_adapter_path(given.input).string();
  const fs::path input = options.input, output = options.output;
  if (!fs::is_directory(input))
    throw UserError("the folder does not exist", input.string(), "give a checkpoint's folder, or a GGUF file");
  require_shard_size(options.max_shard_size);
  const auto require_output_apart = [&] {
    require_apart(output, {{input, "the input"}, {options.model, "the base model"}});
  };
  const fs::path sharded = sharded_folder(input);
  if (sharded.empty() && fs::exists(input / "adapter_config.json")) {
    require_output_apart();
    require_free_folder(output, options.force);
    convert_adapter(options, output);
    return 0;
  }
  if (sharded.empty()) {
    throw UserError(
        "the folder holds no sharded checkpoint", input.string(),
        fmt::format("give a folder with {}0, or the folder of .metadata and .distcp files", kShardedFolder));
  }
  if (options.model.empty()) {
    throw UserError("the pretrained model is not named", "--model",
                    "it says how the tensors are called and laid out: give the model that the training began with");
  }
  require_output_apart();
  require_free_folder(output, options.force);
  const ShardedCheckpoint checkpoint = ShardedCheckpoint::open(sharded);
  LoadedModel model(resolve_model_path(options.model), DType::kBF16);
  const bool adapter = holds_adapter(checkpoint);
  write_directory(output, [&](const fs::path& temporary, FileChecksums& checksums) {
    adapter ? convert_sharded_adapter(options, checkpoint, model, temporary)
            : convert_sharded_model(options, checkpoint, model, temporary, checksums);
  });
  print_text(fmt::format("{}: {} written, from {} tensors in shards\n", output.string(),
                         adapter ? "an adapter" : "a model",
                         with_commas(static_cast<int64_t>(checkpoint.tensors().size()))));
  return 0;
}

namespace {

namespace fs = std::filesystem;

void check(const ExportOptions& options) {
  if (options.format != "safetensors" && !options.format.empty()) {
    throw UserError(fmt::format("'{}' is not a format of export", options.format), "--format",
                    "use safetensors or gguf");
  }
  if (!options.type.empty()) {
    throw UserError("the type is one of GGUF files", "--type", "give --format gguf, or an output that ends in .gguf");
  }
  require_shard_size(options.max_shard_size);
  if (!options.weights.empty() && options.weights != "fp8" && options.weights != "mxfp4") {
    throw UserError(fmt::format("'{}' is not a format of weights in files", options.weights), "--weights",
                    "use fp8 or mxfp4, or leave it out for bfloat16 or float32");
  }
  if (!options.weights.empty() && !options.dtype.empty()) {
    throw UserError("the format of the weights is given twice", "--weights, --dtype", "leave out one");
  }
}

bool makes_gguf(const ExportOptions& options) {
  return options.format == "gguf" || (options.format.empty() && fs::path(options.output).extension() == ".gguf");
}

int export_gguf(const ExportOptions& options) {
  const std::pair<const char*, bool> others[] = {
      {"--dtype", !options.dtype.empty()},
      {"--weights", !options.weights.empty()},
      {"--base-weight-dtype", options.base_weight_dtype != BaseFormat().name()},
      {"--base-weight-keep", !options.base_weight_keep.empty()}};
  for (const auto& [option, given] : others) {
    if (given)
      throw UserError("this is not for GGUF files", option, "leave it out; --type says how numbers are stored");
  }
  return run_gguf_export({options.input, options.output, options.model, options.type, options.force});
}

/// A dtype that represents all weights of the files exactly.
DType exact_dtype(const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.tensors();
  const bool narrow = std::all_of(tensors.begin(), tensors.end(),
                                  [](const auto& tensor) { return tensor.second.entry->dtype == DType::kBF16; });
  return narrow ? DType::kBF16 : DType::kF32;
}

/// Modules of linear weights that stay dense, as config.json lists them.
std::vector<std::string> dense_modules(const ParameterStore& store, QuantMethod method) {
  if (method == QuantMethod::kMxfp4) {
    return {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"};
  }
  std::vector<std::string> modules = {"lm_head"};
  constexpr std::string_view kWeight = ".weight";
  for (const Parameter& p : store.all()) {
    if (p.spec().kind != ParameterKind::kRouter || !p.name().ends_with(kWeight)) continue;
    modules.push_back(p.name().substr(0, p.name().size() - kWeight.size()));
  }
  return modules;
}

/// Writes the error of each tensor to hone_rounding.json, and returns a line with the largest.
std::string report_rounding(const std::vector<RoundedTensor>& tensors, const std::string& format,
                            const fs::path& directory) {
  Json errors = Json::object();
  double sum = 0;
  const RoundedTensor* worst = &tensors.front();
  for (const RoundedTensor& tensor : tensors) {
    errors[tensor.name] = tensor.error;
    sum += tensor.error;
    if (tensor.error > worst->error) worst = &tensor;
  }
  write_text_file(directory / "hone_rounding.json", Json{{"format", format}, {"error", errors}}.dump(1) + "\n");
  return fmt::format(
      "{} tensors rounded to {}: {:.2e} of their norm in the mean, at most {:.2e} ({}); hone_rounding.json has each\n",
      tensors.size(), format, sum / static_cast<double>(tensors.size()), worst->error, worst->name);
}

void export_quantised(const ExportOptions& options, const fs::path& directory) {
  const QuantMethod method = options.weights == "mxfp4" ? QuantMethod::kMxfp4 : QuantMethod::kBlockFp8;
  LoadedModel model(directory, DType::kBF16);
  if (model.checkpoint().quantization()) {
    throw UserError("the model is quantised already", directory.string(),
                    "export it without --weights first, which writes bfloat16, and then the result");
  }
  model.set_trainable(TrainableOptions::nothing());
  ThreadPool pool(options.threads);
  std::string said;
  write_directory(options.output, [&](const fs::path& temporary, FileChecksums& checksums) {
    copy_model_files(directory, temporary);
    copy_own_card(directory, temporary);
    const Json config =
        quantized_config(read_json(temporary / "config.json"), method, dense_modules(model.store(), method));
    write_text_file(temporary / "config.json", config.dump(2) + "\n");
    const auto rounded = save_quantised(temporary, model.store(), model.checkpoint(), model.map(), method, pool,
                                        {.max_shard_size = options.max_shard_size, .checksums = &checksums});
    model.map_of(Checkpoint::open(temporary));  // throws if it is incomplete
    said = report_rounding(rounded, options.weights, temporary);
  });
  print_text(said + fmt::format("{}: written\n", options.output));
}

void export_model(const ExportOptions& options) {
  const std::optional<DType> dtype = parse_weight_dtype(options.dtype, "export");
  const fs::path directory = resolve_model_path(options.input);
  require_apart(options.output, {{directory, "the model"}});
  require_free_folder(options.output, options.force);
  if (!options.weights.empty()) return export_quantised(options, directory);
  LoadedModel model(directory, exact_dtype(Checkpoint::open(directory)));
  model.set_trainable(TrainableOptions::nothing());
  ThreadPool pool(options.threads);
  model.load(Device{}, pool, 0, true);
  write_directory(options.output, [&](const fs::path& temporary, FileChecksums& checksums) {
    copy_model_files(directory, temporary);
    copy_own_card(directory, temporary);
    if (dtype) write_config_dtype(temporary, *dtype);
    save_parameters(temporary, model.store(), &model.checkpoint(), &model.map(),
                    {.max_shard_size = options.max_shard_size, .dtype = dtype, .checksums = &checksums});
    model.map_of(Checkpoint::open(temporary));  // throws if it is incomplete
  });
  print_text(fmt::format("{}: written\n", options.output));
}

}  // namespace

int run_export(const ExportOptions& given) {
  if (makes_gguf(given)) return export_gguf(given);
  check(given);
  ExportOptions options = given;
  if (is_hub_name(given.input)) options.input = resolve_model_path(given.input).string();
  const fs::path input = options.input;
  if (!is_adapter_folder(input)) {
    if (options.base_weight_dtype != BaseFormat().name()) {
      throw UserError("the base is rounded for an adapter, and this is a whole model", "--base-weight-dtype",
                      "leave it out");
    }
    export_model(options);
    return 0;
  }
  MergeOptions merge;
  merge.model = options.model.empty() ? base_of_adapter(input) : options.model;
  merge.adapter = options.input;
  merge.output = options.output;
  merge.dtype = options.dtype;
  merge.max_shard_size = options.max_shard_size;
  merge.threads = options.threads;
  merge.force = options.force;
  merge.base_weight_dtype = options.base_weight_dtype;
  merge.base_weight_keep = options.base_weight_keep;
  if (options.weights.empty()) return run_merge(merge);
  require_apart(options.output, {{options.input, "the adapter"}, {resolve_model_path(merge.model), "the base model"}});
  require_free_folder(options.output, options.force);
  remove_leftovers_beside(options.output);  // a killed export leaves them; removed before as much is written again
  const TemporaryFolder temporary((fs::absolute(options.output) / "").parent_path());
  const fs::path merged = temporary.path() / "merged";
  merge.output = merged.string();
  if (const int code = run_merge(merge); code != 0) return code;
  export_quantised(options, merged);
  return 0;
}

}  // namespace hone
