#include "config/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/base/contains.h"
#include "core/base/error.h"
#include "core/base/float_value.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "data/readers/csv_reader.h"
#include "params/mapped_values.h"
#include "session/model_path.h"
#include "text/named_templates.h"

namespace hone {

namespace {

std::string read_file(const std::string& path, const std::string& key) {
  try {
    return read_whole_file(path);
  } catch (const UserError& error) {
    throw UserError(error.message(), path, "check the path in " + key);
  }
}

/// The files of a model folder that affect tokenization and the training text.
std::vector<std::string> tokenizer_files(const std::filesystem::path& directory) {
  std::vector<std::string> files;
  for (const char* name : {"tokenizer.json", "tiktoken.model", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "generation_config.json", "chat_template.jinja"}) {
    if (std::filesystem::exists(directory / name)) files.push_back((directory / name).string());
  }
  return files;
}

/// Shares of the data sets; empty if none is set, or if there is nothing to mix.
std::vector<double> dataset_weights(const std::vector<DatasetConfig>& configs) {
  const bool stated = std::any_of(configs.begin(), configs.end(),
                                  [](const DatasetConfig& config) { return config.weight.has_value(); });
  std::vector<double> weights;
  for (size_t i = 0; stated && configs.size() > 1 && i < configs.size(); ++i) {
    weights.push_back(configs[i].weight.value_or(1));
  }
  return weights;
}

/// "3" and "4-7" as layers.
std::vector<int64_t> layers_of(const std::vector<std::string>& texts) {
  constexpr int64_t kMost = 1 << 20;
  std::vector<int64_t> layers;
  for (const std::string& text : texts) {
    int64_t first = 0, last = 0;
    const char *begin = text.data(), *end = begin + text.size();
    auto read = std::from_chars(begin, end, first);
    bool good = read.ec == std::errc();
    last = first;
    if (good && read.ptr != end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
      good = read.ec == std::errc();
    }
    if (!good || read.ptr != end || first < 0 || last < first || last > kMost) {
      throw UserError(fmt::format("'{}' is neither a layer nor a range of layers", text), "lora_layers",
                      "write numbers from 0 on, or ranges: [0, 4-7]");
    }
    for (int64_t layer = first; layer <= last; ++layer) layers.push_back(layer);
  }
  return layers;
}

std::vector<LoraPattern> patterns_of(const Json& mapping, const std::string& key, bool whole) {
  std::vector<LoraPattern> patterns;
  for (const auto& [pattern, value] : mapping.items()) {
    const double number = value.is_number() ? value.get<double>() : 0;
    if (!is_positive(number) || number > 1e9 || (whole && number != std::floor(number))) {
      throw UserError(fmt::format("{} of '{}' is {}: expected a {} above 0", key, pattern, value.dump(),
                                  whole ? "whole number" : "number"),
                      key);
    }
    patterns.push_back({pattern, number});
  }
  return patterns;
}

}  // namespace

const WeightFormat& expert_format_of(const RunConfig& config) { return config.model.expert_weight_dtype.format(); }

LoraOptions lora_options(const RunConfig::Lora& lora) {
  LoraOptions options;
  options.r = lora.r.value_or(16);
  options.alpha = lora.alpha.value_or(2.0 * static_cast<double>(options.r));
  options.dropout = lora.dropout.value_or(0.0);
  options.use_rslora = lora.use_rslora;
  options.use_dora = lora.use_dora;
  options.expert_lora = lora.expert_lora;
  options.target_modules = lora.target_modules;
  options.exclude_modules = lora.exclude_modules;
  options.exclusions_may_miss = lora.exclude_unmatched == UnmatchedExclusion::kWarn;
  options.target_parameters = lora.target_parameters;
  options.layers = layers_of(lora.layers);
  options.rank_pattern = patterns_of(lora.rank_pattern, "lora_rank_pattern", true);
  options.alpha_pattern = patterns_of(lora.alpha_pattern, "lora_alpha_pattern", false);
  options.init = lora.init;
  return options;
}

TrainingFormats training_formats(const RunConfig& config) {
  const RunConfig::Model& model = config.model;
  // Second moments are not negative: their codes of 8 bits have no sign.
  const DType v = model.opt_v_dtype == DType::kI8 ? DType::kU8 : model.opt_v_dtype;
  return {.gradient = model.grad_dtype, .master = model.master_dtype, .m = model.opt_m_dtype, .v = v};
}

RunPrecision precision_of(const RunConfig& config) {
  return {.weights = config.model.dtype,
          .experts = &expert_format_of(config),
          .base = config.model.base_weight_dtype,
          .formats = training_formats(config),
          .layer_inputs = config.model.layer_input_dtype,
          .layers_share_gradients = config.optim.optimizer_in_backward,
          .optimizer = optimizer_options(config),
          .stage = config.machine.zero_stage,
          .ranks = config.machine.shard_size > 0 ? config.machine.shard_size : config.machine.ranks};
}

bool computes_experts_on_host(const RunConfig& config, Device device) {
  const ExpertsOn where = config.machine.experts_device;
  const bool only_there = device.kind == DeviceKind::kCuda && !expert_format_of(config).movable();
  return where == ExpertsOn::kCpu || (where == ExpertsOn::kAuto && only_there);
}

Device experts_device_of(const RunConfig& config, Device device) {
  const bool all_on_host = computes_experts_on_host(config, device) && !config.machine.cpu_expert_layers;
  return all_on_host ? Device{} : device;
}

RankShare rank_share(const RunConfig& config, Device device, int rank) {
  RankShare share = {.rank = rank,
                     .ranks = static_cast<int>(config.machine.ranks),
                     .stage = config.machine.zero_stage,
                     .shard_size = static_cast<int>(config.machine.shard_size),
                     .expert_ranks = static_cast<int>(config.machine.expert_parallel_size),
                     .offload = offload_of(config.machine.cpu_offload),
                     .frozen_in_files = config.machine.frozen_weights == FrozenWeights::kFile,
                     .host_expert_layers = computes_experts_on_host(config, device)
                                               ? config.machine.cpu_expert_layers.value_or(kAllLayers)
                                               : 0,
                     .host_ranks = static_cast<int>(std::max<int64_t>(config.machine.ranks_of_host, 1)),
                     .least_sharded_elements = config.machine.least_sharded_elements};
  share.offload.expert_layers = config.machine.offload_expert_layers.value_or(kAllLayers);
  share.mapping_granularity = mapping_granularity_of(share, device);
  return share;
}

TrainableOptions trainable_options(const RunConfig& config, Device device, int rank, RunUse use) {
  TrainableOptions options;
  const bool lora = config.model.finetuning_type == FinetuningType::kLora;
  const bool trains = lora || use == RunUse::kTraining;  // adapters are read as what is trained
  options.train_base = !lora && trains;
  options.adapter = resolve_adapter_path(config.model.adapter_name_or_path);
  if (lora && options.adapter.empty()) options.lora = lora_options(config.lora);
  if (lora && use == RunUse::kTraining) {
    options.stated = {config.lora.r, config.lora.alpha, config.lora.dropout, lora_options(config.lora)};
  }
  options.train_router = trains && !config.model.freeze_router;
  options.train_embedding = lora && contains(config.lora.modules_to_save, WholeModule::kEmbedding);
  options.train_head = lora && contains(config.lora.modules_to_save, WholeModule::kHead);
  options.formats = training_formats(config);
  options.state_of = [optimizer = optimizer_options(config)](const Parameter& p, const TrainingFormats& formats) {
    return optimizer.state_of(p, formats);
  };
  options.optimizer_in_backward = config.optim.optimizer_in_backward;
  options.freeze = config.model.freeze_parameters;
  if (trains) options.unfreeze = config.model.trainable_parameters;
  hold_base_as(options, config.model.base_weight_dtype, config.model.base_weight_keep);
  options.fp8 = {config.model.fp8, config.model.fp8_weight_gradients};
  options.fp8_keep = config.model.fp8_keep;
  options.ranks = rank_share(config, device, rank);
  return options;
}

bool gathers_stepped_values(const RunConfig& config) {
  const ZeroStage stage = config.machine.zero_stage;
  const bool shards = stage != ZeroStage::kNone, shards_values = stage == ZeroStage::kValues;
  return config.machine.ranks > 1 && shards && !shards_values && config.model.finetuning_type == FinetuningType::kFull;
}

std::vector<OffloadPart> offload_parts() {
  std::vector<OffloadPart> parts = all_choices<OffloadPart>();
  std::erase(parts, OffloadPart::kAuto);
  return parts;
}

Offload offload_of(const std::vector<OffloadPart>& parts) {
  return {.optimizer = contains(parts, OffloadPart::kOptimizer),
          .params = contains(parts, OffloadPart::kParams),
          .experts = contains(parts, OffloadPart::kExperts)};
}

const std::vector<std::vector<OffloadPart>>& offload_choices() {
  using enum OffloadPart;
  static const std::vector<std::vector<OffloadPart>> choices = {
      {},        {kActivations},          {kOptimizer},          {kOptimizer, kActivations},
      {kParams}, {kParams, kActivations}, {kParams, kOptimizer}, {kParams, kOptimizer, kActivations}};
  return choices;
}

std::vector<DatasetEntry> dataset_entries(const std::vector<DatasetConfig>& configs) {
  std::vector<DatasetEntry> entries;
  for (const DatasetConfig& config : configs) {
    const bool code = config.is_code();
    ColumnMapping mapping = ColumnMapping::parse(config.column_mapping, config.path);
    mapping.ignore(config.ignore_columns, config.path);
    entries.push_back({.path = config.path,
                       .format = code ? SampleFormat::kText : sample_format_of(config.type),
                       .samples = config.samples,
                       .name = config.name,
                       .split = config.split,
                       .mapping = std::move(mapping),
                       .delimiter = delimiter_of(config.delimiter, config.path),
                       .prompt_template = config.prompt_template.is_null() ? std::nullopt
                                                                           : std::optional(PromptTemplate::parse(
                                                                                 config.prompt_template, config.path)),
                       .drop_system_message = config.drop_system_message,
                       .code = code ? std::optional(CodeOptions::parse(config.code, config.path)) : std::nullopt});
  }
  return entries;
}

std::filesystem::path tokenizer_directory(const RunConfig& config, const std::filesystem::path& model_directory) {
  const std::string& stated = config.model.tokenizer_name_or_path;
  return stated.empty() ? model_directory : resolve_model_path(stated, ModelParts::kDescriptions);
}

int64_t default_max_length(const DecoderConfig& model) {
  return std::min<int64_t>(model.rope.max_position_embeddings, 4096);
}

NewTokens new_tokens(const RunConfig& config) { return {config.model.add_tokens, config.model.add_special_tokens}; }

TokenChoice token_choice(const RunConfig::Data& data) {
  TokenChoice choice = TokenChoice::parse(data.special_tokens, data.eot_tokens, "special_tokens");
  const NamedTemplate* named = find_named_template(data.chat_template);
  return named == nullptr ? choice : with_stop(std::move(choice), *named);
}

DataOptions data_options(const RunConfig& config, int64_t vocab_size, const std::filesystem::path& tokenizer_from,
                         const std::string& chat_template) {
  const RunConfig::Data& data = config.data;
  DataOptions options;
  options.datasets = dataset_entries(data.datasets);
  options.eval_datasets = dataset_entries(data.eval_datasets);
  options.val_split = data.val_split;
  options.max_length = data.max_length.value();
  options.overlength = data.overlength;
  options.chat.train_on = data.train_on;
  options.chat.history_rewrites = data.history_rewrites;
  if (options.overlength != Overlength::kSplit && options.overlength != Overlength::kTruncateLeft)
    options.chat.longest_sample = static_cast<size_t>(options.max_length);
  options.chat.chat_template = chat_template;
  if (!data.chat_template_file.empty()) {
    options.chat.chat_template = read_file(data.chat_template_file, "chat_template_file");
    options.chat.chat_template_name = data.chat_template_file;
  }
  options.chat.chat_template_kwargs = data.chat_template_kwargs;
  options.chat.learn_empty_thinking = data.learn_empty_thinking;
  options.chat.split_special_tokens = data.split_special_tokens;
  options.chat.add_bos = data.add_bos_token;
  options.chat.add_eos = data.add_eos_token;
  options.token_choice = token_choice(data).to_json();
  if (const NewTokens more = new_tokens(config); !more.empty()) options.token_choice["added"] = more.to_json();
  options.data_seed = static_cast<uint64_t>(config.machine.data_seed);
  options.vocab_size = vocab_size;
  options.tolerant = data.data_checks == DataChecks::kWarn;
  options.tokenized_cache = data.tokenized_cache;
  options.tokenizer_files = tokenizer_files(tokenizer_from);
  return options;
}

LoaderOptions train_loader_options(const RunConfig& config) {
  return {.per_device_batch_size = config.schedule.per_device_train_batch_size,
          .micro_batches_per_step = config.schedule.gradient_accumulation_steps * config.machine.ranks,
          .packing = config.data.packing,
          .shuffle = config.data.shuffle,
          .seed = static_cast<uint64_t>(config.machine.data_seed),
          .dataset_weights = dataset_weights(config.data.datasets)};
}

LoaderOptions eval_loader_options(const RunConfig& config) {
  return {.per_device_batch_size = config.eval.per_device_eval_batch_size,
          .micro_batches_per_step = 1,
          .packing = config.data.packing,
          .shuffle = false,
          .seed = static_cast<uint64_t>(config.machine.data_seed)};
}

TrainingMethods training_methods(const RunConfig& config, const DecoderConfig& model) {
  const double jitter = config.model.router_jitter_noise.value_or(0.0);
  for (const auto& [key, value] :
       {std::pair{"router_z_loss_coef", config.model.router_z_loss_coef}, {"router_jitter_noise", jitter}}) {
    if (value == 0 || model.num_moe_layers() > 0) continue;
    throw UserError(fmt::format("{} is {}, but the model has no routers", key, value), key, "leave it out");
  }
  if (config.model.moe_token_tile.value_or(0) > 0 && model.num_moe_layers() == 0) {
    throw UserError(fmt::format("moe_token_tile is {}, but the model has no experts", *config.model.moe_token_tile),
                    "moe_token_tile", "leave it out");
  }
  if (config.model.mlp_token_tile.value_or(0) > 0 && model.widest_mlp() == 0) {
    throw UserError(fmt::format("mlp_token_tile is {}, but the model has no dense MLP and no shared expert",
                                *config.model.mlp_token_tile),
                    "mlp_token_tile", "leave it out");
  }
  if (config.model.layer_input_dtype == LayerInputFormat::kFp8 && model.hidden_size % kFp8Unit != 0) {
    throw UserError(fmt::format("layer_input_dtype is fp8, which takes hidden sizes that are multiples of {}, and the "
                                "model's is {}",
                                kFp8Unit, model.hidden_size),
                    "layer_input_dtype", "leave it out");
  }
  TrainingMethods methods;
  methods.label_smoothing = static_cast<float>(config.optim.label_smoothing_factor);
  methods.neftune_noise_alpha = static_cast<float>(config.optim.neftune_noise_alpha);
  methods.router_z_loss_coef = static_cast<float>(config.model.router_z_loss_coef);
  if (config.model.router_jitter_noise) methods.router_jitter_noise = static_cast<float>(jitter);
  return methods;
}

double aux_loss_coefficient(const RunConfig& config, const DecoderConfig& model) {
  if (model.num_moe_layers() == 0) return 0.0;
  const bool trains_router = config.model.finetuning_type == FinetuningType::kFull && !config.model.freeze_router;
  return config.model.router_aux_loss_coef.value_or(trains_router ? model.moe.router_aux_loss_coef : 0.0);
}

}  // namespace hone
