#include "app/inference_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "app/merge/merge.h"
#include "core/checksum.h"
#include "core/cuda_device.h"
#include "core/error.h"
#include "core/file_bytes.h"
#include "core/untrusted_json.h"
#include "params/frozen_weights.h"
#include "params/mapped_values.h"
#include "session/device_facts.h"
#include "train/run_options.h"
#include "train/saved_chat.h"
#include "weights/model_folder.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// Replaces an adapter's folder by its base model and the adapter.
InferenceOptions with_base(InferenceOptions options) {
  const fs::path folder = options.model;
  if (!is_adapter_folder(folder)) return options;
  if (!options.adapter.empty()) {
    throw UserError("the model is an adapter's folder, and another adapter is given", "--model",
                    "name the base model with --model");
  }
  options.adapter = options.model;
  options.model = base_of_adapter(folder);
  return options;
}

DType dtype_of(const std::string& given, const fs::path& model) {
  if (const std::optional<DType> dtype = parse_weight_dtype(given, "generate")) return *dtype;
  const HfConfig config = HfConfig::read(model);
  const std::string stated = config.string_or("dtype", config.string_or("torch_dtype", "bfloat16"));
  return stated == name_of(DType::kF32) ? DType::kF32 : DType::kBF16;
}

const WeightFormat& experts_of(const InferenceOptions& options, Device device) {
  constexpr const char* kOption = "--expert-weight-dtype";
  const WeightFormat& experts = parse_expert_format(options.expert_weight_dtype, kOption);
  check_expert_format(experts, device, kOption, "choose the device cpu, or leave it out");
  return experts;
}

/// The template of the options; else the adapter's, with which it was trained; else the model's.
ChatTemplateSource template_of(const InferenceOptions& options) {
  if (!options.chat_template.empty()) return read_chat_template(options.chat_template);
  const fs::path of_adapter = fs::path(options.adapter) / "chat_template.jinja";
  if (options.adapter.empty() || !fs::exists(of_adapter)) return {};
  return read_chat_template(of_adapter.string());
}

Json variables_of(const InferenceOptions& options) {
  Json variables = Json::object();
  if (!options.chat_template_kwargs.empty()) {
    variables = parse_json(options.chat_template_kwargs);
    if (!variables.is_object()) {
      throw UserError("the variables of the chat template are not a JSON object", "--chat-template-kwargs",
                      R"(such as '{"enable_thinking": false}')");
    }
  }
  if (!options.enable_thinking) return variables;
  if (variables.contains("enable_thinking") && variables["enable_thinking"] != *options.enable_thinking) {
    throw UserError("enable_thinking is given twice, with different values", "--enable-thinking", "leave out one");
  }
  variables["enable_thinking"] = *options.enable_thinking;
  return variables;
}

void check_offload(const InferenceOptions& options) {
  if (options.cpu_offload.empty() || options.expert_weight_dtype != "int8") return;
  throw UserError("weights come from host memory in dtype or packed, and experts held in 8 bits stay on the device",
                  "--cpu-offload", "leave it out, or --expert-weight-dtype");
}

Tokenizer load_tokenizer(const fs::path& model, const TokenChoice& choice) {
  if (!fs::exists(model / "tokenizer.json")) {
    throw UserError("the model has no tokenizer", (model / "tokenizer.json").string(),
                    "copy the tokenizer's files into the model folder");
  }
  Tokenizer tokenizer = Tokenizer::load(model);
  tokenizer.choose(choice);
  return tokenizer;
}

/// The device of one of the ranks, or of the only one.
Device device_of(const InferenceOptions& options, const TrainerRanks& ranks) {
  return ranks.size > 1 ? choose_rank_device(options.device, ranks.local_rank, ranks.local_size, ranks.size)
                        : choose_device(options.device, "--device");
}

}  // namespace

std::vector<std::string> inference_offload_names() { return {"params", "experts"}; }

bool is_adapter_folder(const fs::path& folder) {
  require_finished(folder);
  return fs::exists(folder / "adapter_config.json") && !fs::exists(folder / "config.json");
}

std::string base_of_adapter(const fs::path& folder) {
  const Json config = read_json(folder / "adapter_config.json");
  if (config.is_object() && config.contains("base_model_name_or_path") &&
      config["base_model_name_or_path"].is_string()) {
    return config["base_model_name_or_path"].get<std::string>();
  }
  throw UserError("the adapter does not say which model it belongs to", (folder / "adapter_config.json").string(),
                  "name the base model with --model");
}

SamplingOptions SamplingOverrides::apply(SamplingOptions options) const {
  const bool draws = temperature.has_value() || top_k.has_value() || top_p.has_value();
  options.do_sample = do_sample.value_or(draws || options.do_sample);
  options.max_new_tokens = max_new_tokens.value_or(options.max_new_tokens);
  options.temperature = temperature.value_or(options.temperature);
  options.top_k = top_k.value_or(options.top_k);
  options.top_p = top_p.value_or(options.top_p);
  options.repetition_penalty = repetition_penalty.value_or(options.repetition_penalty);
  options.seed = seed.value_or(options.seed);
  check_sampling(options);
  return options;
}

InferenceModel::InferenceModel(const InferenceOptions& options, TrainerRanks ranks)
    : options_(with_base(options)),
      ranks_(std::move(ranks)),
      device_(device_of(options_, ranks_)),
      directory_(resolve_model_path(options_.model)),
      trained_(saved_chat_settings(options_.adapter.empty() ? directory_ : fs::path(options_.adapter))),
      tokenizer_(load_tokenizer(directory_, trained_.tokens)),
      pool_(ranks_.size > 1 ? rank_threads(options_.threads, ranks_.cores_shared_by) : options_.threads),
      stream_(device_, pool_),
      model_(directory_, dtype_of(options_.dtype, directory_), experts_of(options_, device_)),
      chat_(std::make_unique<ChatPrompt>(tokenizer_, template_of(options_))),
      variables_(trained_.kwargs) {
  if (const std::string reason = why_no_gpu_is_used(options_.device, device_); !reason.empty())
    notes_.push_back(reason);
  const Json stated = variables_of(options_);
  if (!variables_.empty()) {
    notes_.push_back(fmt::format("chat_template_kwargs of the training run: {}{}", variables_.dump(),
                                 stated.empty() ? "" : fmt::format(", and stated here: {}", stated.dump())));
  }
  variables_.update(stated);
  check_offload(options_);
  SamplingDefaults defaults = read_sampling_defaults(directory_);
  sampling_ = options_.sampling.apply(defaults.options);
  if (!defaults.not_applied.empty()) {
    notes_.push_back(fmt::format("warning: generation_config.json asks for what this version does not apply: {}",
                                 fmt::join(defaults.not_applied, ", ")));
  }
}

std::optional<std::string> InferenceModel::warning_of_thinking() const {
  if (!sampling_.greedy() || !chat_->thinks(variables_)) return std::nullopt;
  const std::optional<std::string> name = chat_->thinking_switch(variables_);
  const std::string off = !name                        ? ""
                          : *name == "enable_thinking" ? "; --enable-thinking false turns thoughts off"
                                                       : fmt::format(
                                                             "; --chat-template-kwargs '{{\"{}\": false}}' "
                                                             "turns thoughts off",
                                                             *name);
  return "warning: thoughts are on and the most likely token is always taken: models that think often repeat "
         "themselves without end so; --temperature 0.6 --top-p 0.95 draws" +
         off;
}

bool InferenceModel::is_stop(int32_t id) const {
  return std::find(stop_ids().begin(), stop_ids().end(), id) != stop_ids().end();
}

ChatTemplateSource read_chat_template(const std::string& path) {
  ChatTemplateSource source{read_whole_file(path), path};
  if (source.text.empty()) throw UserError("the chat template is empty", path, "give a Jinja file");
  return source;
}

int64_t context_length(const RopeParameters& rope) {
  const RopeScaling& scaling = rope.scaling;
  const auto scaled = [&](int64_t positions) {
    constexpr double kMost = 1e15;  // a file may have any factor
    return static_cast<int64_t>(std::clamp(scaling.factor.value_or(1.0) * static_cast<double>(positions), 0.0, kMost));
  };
  switch (scaling.type) {
    case RopeType::kDefault:
    case RopeType::kLlama3:
      return rope.max_position_embeddings;
    case RopeType::kLinear:
    case RopeType::kDynamic:
      return scaled(rope.max_position_embeddings);
    case RopeType::kYarn:
      return std::max(rope.max_position_embeddings,
                      scaled(scaling.original_max_position_embeddings.value_or(rope.max_position_embeddings)));
  }
  return rope.max_position_embeddings;
}

void InferenceModel::connect(std::span<const std::vector<int32_t>> prompts) {
  if (ranks_.size == 1) return;
  communicator_ = ranks_.connect(stream_);
  uint32_t sum = 0;
  for (const std::vector<int32_t>& prompt : prompts) sum = extend_crc32c(sum, std::as_bytes(std::span(prompt)));
  control()->check_same("prompts", fmt::format("{} prompts, checksum {:08x}", prompts.size(), sum));
  control()->check_same("sampling",
                        fmt::format("max_new_tokens {}\ntemperature {}\ntop_k {}\ntop_p {}\n"
                                    "repetition_penalty {}\ndo_sample {}\nseed {}",
                                    sampling_.max_new_tokens, sampling_.temperature, sampling_.top_k, sampling_.top_p,
                                    sampling_.repetition_penalty, sampling_.do_sample, sampling_.seed));
}

RankShare InferenceModel::share() const {
  RankShare share = {.rank = ranks_.rank,
                     .ranks = ranks_.size,
                     .stage = static_cast<ZeroStage>(options_.zero_stage),
                     .offload = offload_of(options_.cpu_offload),
                     .least_sharded_elements = options_.least_sharded_elements};
  share.mapping_granularity = mapping_granularity_of(share, stream_.device());
  return share;
}

MemoryPlan InferenceModel::plan(const GeneratorOptions& options) {
  MemoryPlan plan;
  plan.parameters = model_.store().bytes(false);
  plan.libraries = library_memory(stream_.device(), share());
  for (const std::vector<CacheTensor>& layer : model_.decoder().cache(options.max_sequences, options.max_length)) {
    for (const auto& [shape, dtype] : layer) {
      plan.activations += shape.numel() * static_cast<int64_t>(size_of(dtype));
    }
  }
  return plan;
}

namespace {

/// Packs what base_weight_dtype: nf4 would pack.
void hold_base_in_nf4(ParameterStore& store) {
  const auto formats = packed_weights(store, [](const Parameter&) { return &nf4_format(); }, {});
  for (Parameter& p : store.all()) {
    if (formats.contains(&p)) p.hold_in(nf4_format());
  }
}

}  // namespace

std::string InferenceModel::what_fits(const GeneratorOptions& options, const MemoryLimit& limit) {
  GeneratorOptions one = options;
  one.max_sequences = 1;
  const auto fits = [&](const RankShare& share) {
    model_.store().share_among(share);
    return limit.fits(plan(one));
  };
  if (fits(share())) return "run fewer sequences at once (--batch-size), or shorter ones (--max-new-tokens)";
  const bool on_gpu = stream_.device().kind == DeviceKind::kCuda;
  if (on_gpu && ranks_.size == 1) {
    for (int ranks = 2; ranks <= cuda::device_count(); ++ranks) {
      RankShare among = share();
      among.ranks = ranks;
      among.stage = ZeroStage::kValues;
      if (fits(among)) return fmt::format("it fits on {} GPUs: hone generate --ranks {}", ranks, ranks);
    }
  }
  RankShare streamed = share();
  streamed.offload.params = true;
  const bool streams = on_gpu && options_.expert_weight_dtype != "int8";
  const bool fits_streamed = streams && fits(streamed);
  if (options_.base_weight_dtype == "dtype") {
    hold_base_in_nf4(model_.store());
    if (fits(share())) {
      return fmt::format("it fits with --base-weight-dtype nf4, which rounds the weights{}",
                         fits_streamed ? "; or, slower, with --cpu-offload params, which does not" : "");
    }
    if (!fits_streamed && streams && fits(streamed)) {
      return "it fits with --base-weight-dtype nf4 and --cpu-offload params";
    }
  }
  if (fits_streamed) return "it fits with --cpu-offload params";
  return on_gpu ? "shard the weights over more GPUs (hone launch -n N -- generate …)"
                : "use a machine with more memory";
}

void InferenceModel::require_memory(const GeneratorOptions& options) {
  MemoryLimit limit = memory_limit(stream_);
  if (ranks_.size > 1) limit = least_of_ranks(limit, stream_.device(), ranks_.local_size, *control());
  const MemoryPlan needed = plan(options);
  if (limit.fits(needed)) return;
  throw does_not_fit("the model", needed, limit, what_fits(options, limit));
}

Generator& InferenceModel::load(GeneratorOptions options) {
  TrainableOptions nothing = TrainableOptions::nothing(options_.adapter);
  hold_base_as(nothing, options_.base_weight_dtype);
  nothing.ranks = share();
  model_.set_trainable(nothing);
  require_memory(options);
  model_.load(stream_.device(), pool_, 0, true);
  ParameterStore& store = model_.store();
  order_frozen_experts(store, pool_);
  model_.decoder().prepare(stream_, options.max_length);
  if (store.brings_values()) {
    feed_.emplace(communicator_.get(), store, model_.decoder().placement(), stream_.device());
    options.together.values = &*feed_;
  }
  options.together.ranks = control();
  generator_ = std::make_unique<Generator>(model_.decoder(), stream_, options);
  return *generator_;
}

}  // namespace hone
