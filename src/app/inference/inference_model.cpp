#include "app/inference/inference_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "app/merge/merge.h"
#include "config/run_options.h"
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/cuda/cuda_device.h"
#include "core/files/durable_file.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "dist/exchange/host_sharing.h"
#include "params/frozen_weights.h"
#include "params/mapped_values.h"
#include "session/device_facts.h"
#include "session/model_path.h"
#include "text/named_templates.h"
#include "text/tiktoken.h"
#include "train/plan/adapter_tokenizer.h"
#include "train/plan/experts_device.h"
#include "train/plan/fitting_setting.h"
#include "train/plan/model_identity.h"
#include "train/save/saved_chat.h"
#include "weights/adapter_folder.h"
#include "weights/model_folder.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

/// Replaces names of the hub by folders, and an adapter's folder by its base model and the adapter.
InferenceOptions with_base(InferenceOptions options) {
  if (is_hub_name(options.model)) options.model = resolve_model_path(options.model).string();
  options.adapter = resolve_adapter_path(options.adapter).string();
  for (std::string& adapter : options.further_adapters) adapter = resolve_adapter_path(adapter).string();
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

DType dtype_of_model(const fs::path& model) {
  const HfConfig config = HfConfig::read(model);
  const std::string stated = config.string_or("dtype", config.string_or("torch_dtype", "bfloat16"));
  return stated == name_of(DType::kF32) ? DType::kF32 : DType::kBF16;
}

ResolvedConfig config_of(const InferenceOptions& options, const TrainerRanks& ranks) {
  ResolvedConfig config =
      resolve_keys(usual_in_inference(), options.keys, {ranks.size, ranks.ranks_of_host}, RuleUse::kAlways);
  const RunConfig& run = config.run;
  for (const OffloadPart name : run.machine.cpu_offload) {
    if (name == OffloadPart::kParams || name == OffloadPart::kExperts) continue;
    refuse(config, "cpu_offload", fmt::format("without training there is nothing of {} to hold in host memory", name),
           "use params or experts");
  }
  if (run.machine.zero_stage != ZeroStage::kNone && run.machine.zero_stage != ZeroStage::kValues) {
    refuse(config, "zero_stage", fmt::format("zero_stage {} shares what training alone has", run.machine.zero_stage),
           "use 3, which shards the weights, or 0");
  }
  if (ranks.size > 1 && run.machine.experts_device == ExpertsOn::kAuto) {
    refuse(config, "experts_device", "auto chooses for one rank here", "write cpu or gpu");
  }
  return config;
}

/// The run of the keys, whose dtype is the model's where none is stated.
RunConfig run_of(const ResolvedConfig& config, const fs::path& model) {
  RunConfig run = config.run;
  if (!config.states("dtype")) run.model.dtype = dtype_of_model(model);
  return run;
}

const WeightFormat& experts_of(const RunConfig& run, Device device) {
  const WeightFormat& experts = expert_format_of(run);
  check_expert_format(experts, experts_device_of(run, device), "expert_weight_dtype",
                      "choose experts_device=cpu, which computes them on the CPU beside the GPU, or leave it out");
  return experts;
}

/// The template of --chat-template that is built in; null for a file of that name, or any other.
const NamedTemplate* built_in_template(const std::string& name) {
  return name.empty() || fs::exists(name) ? nullptr : find_named_template(name);
}

/// The template of the options; else the adapter's, with which it was trained; else the model's. Adds to `notes` what
/// to tell the user of it.
ChatTemplateSource template_of(const InferenceOptions& options, const std::string& adapter, const Tokenizer& tokenizer,
                               std::vector<std::string>& notes) {
  if (const NamedTemplate* named = built_in_template(options.chat_template)) {
    const ChosenTemplate chosen = choose_template(named->name, tokenizer, "--chat-template");
    if (!chosen.note.empty()) notes.push_back(chosen.note);
    return {chosen.text, named->name};
  }
  if (!options.chat_template.empty()) {
    if (!fs::exists(options.chat_template)) {
      throw UserError(fmt::format("'{}' is neither a file nor a template that is built in.{}", options.chat_template,
                                  did_you_mean(options.chat_template, template_name_list())),
                      "--chat-template", fmt::format("name a Jinja file, or one of: {}", template_names()));
    }
    return read_chat_template(options.chat_template);
  }
  const fs::path of_adapter = fs::path(adapter) / "chat_template.jinja";
  if (adapter.empty() || !fs::exists(of_adapter)) return {};
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

/// `chat_template`: --chat-template.
Tokenizer load_tokenizer(const fs::path& model, const fs::path& adapter, const TokenChoice& choice,
                         const std::string& chat_template) {
  if (!has_tokenizer(model)) {
    throw UserError("the model has no tokenizer", (model / "tokenizer.json").string(),
                    "copy the tokenizer's files into the model folder");
  }
  Tokenizer tokenizer = load_tokenizer_beside(model, tokenizer_folder(model, adapter));
  const NamedTemplate* named = built_in_template(chat_template);
  if (named != nullptr) require_tokens(*named, tokenizer, "--chat-template");
  tokenizer.choose(named == nullptr ? choice : with_stop(choice, *named));
  return tokenizer;
}

/// The device of one of the ranks, or of the only one.
Device device_of(const RunConfig& run, const TrainerRanks& ranks) {
  return ranks.size > 1 ? choose_rank_device(run.machine.device, ranks.local_rank, ranks.local_size, ranks.size)
                        : choose_device(run.machine.device, "device");
}

}  // namespace

std::vector<std::pair<fs::path, const char*>> inputs_of(const InferenceOptions& given) {
  const InferenceOptions options = with_base(given);
  std::vector<std::pair<fs::path, const char*>> paths = {
      {resolve_model_path(options.model), "the model"},
      {options.adapter, "the adapter"},
      {built_in_template(options.chat_template) == nullptr ? options.chat_template : "", "the chat template"}};
  for (const std::string& adapter : options.further_adapters) paths.emplace_back(adapter, "an adapter");
  return paths;
}

UsualValues usual_in_inference() { return {{"zero_stage", "3"}, {"dtype", ""}}; }

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
      config_(config_of(options_, ranks_)),
      device_(device_of(config_.run, ranks_)),
      directory_(resolve_model_path(options_.model)),
      run_(run_of(config_, directory_)),
      pool_(ranks_.size > 1 ? rank_threads(options_.threads, ranks_.cores_shared_by) : options_.threads),
      stream_(device_, pool_),
      model_(directory_, run_.model.dtype, experts_of(run_, device_), vocab_rows_of_adapter(options_.adapter)),
      notes_(config_.notes) {
  if (const std::string reason = why_no_gpu_is_used(run_.machine.device, device_); !reason.empty())
    notes_.push_back(reason);
  forms_.push_back(form_of(options_.adapter));
  for (const std::string& adapter : options_.further_adapters) forms_.push_back(form_of(adapter));
  if (!options_.adapter.empty() && options_.base_beside) {
    if (describe_adapter(options_.adapter, model_.store()).whole.empty()) {
      forms_.push_back(form_of(""));
    } else {
      notes_.push_back("the base is not served beside the adapter, which holds weights of it whole");
    }
  }
  SamplingDefaults defaults = read_sampling_defaults(directory_);
  sampling_ = options_.sampling.apply(defaults.options);
  if (!defaults.not_applied.empty()) {
    notes_.push_back(fmt::format("warning: generation_config.json asks for what this version does not apply: {}",
                                 fmt::join(defaults.not_applied, ", ")));
  }
}

InferenceForm InferenceModel::form_of(const std::string& adapter) {
  InferenceForm form;
  form.adapter = adapter;
  form.trained = saved_chat_settings(adapter.empty() ? directory_ : fs::path(adapter));
  const auto with_equal_tokens = [&](const InferenceForm& other) {
    return tokenizer_folder(directory_, other.adapter) == tokenizer_folder(directory_, adapter) &&
           other.trained.tokens.to_json() == form.trained.tokens.to_json();
  };
  const auto other = std::find_if(forms_.begin(), forms_.end(), with_equal_tokens);
  form.tokenizer = other != forms_.end() ? other->tokenizer
                                         : std::make_shared<const Tokenizer>(load_tokenizer(
                                               directory_, adapter, form.trained.tokens, options_.chat_template));
  std::vector<std::string> notes;
  form.chat =
      std::make_unique<const ChatPrompt>(*form.tokenizer, template_of(options_, adapter, *form.tokenizer, notes),
                                         options_.split_special_tokens.value_or(form.trained.split_special_tokens));
  const Json stated = variables_of(options_);
  form.variables = form.trained.kwargs;
  if (!form.variables.empty()) {
    notes.push_back(fmt::format("chat_template_kwargs of the training run: {}{}", form.variables.dump(),
                                stated.empty() ? "" : fmt::format(", and stated here: {}", stated.dump())));
  }
  if (form.trained.split_special_tokens && !options_.split_special_tokens) {
    notes.push_back("split_special_tokens of the training run: special tokens in the text of messages are text");
  }
  form.variables->update(stated);
  const bool alone = forms_.empty() && options_.further_adapters.empty();
  const std::string& name = adapter.empty() ? options_.model : adapter;
  for (const std::string& note : notes) notes_.push_back(alone ? note : fmt::format("{}: {}", name, note));
  return form;
}

std::optional<std::string> InferenceModel::warning_of_thinking() const {
  const Json& variables = template_variables();
  if (!sampling_.greedy() || !chat().thinks(variables)) return std::nullopt;
  const std::optional<std::string> name = chat().thinking_switch(variables);
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

void InferenceModel::use_form(size_t form) {
  model_.use_adapter(forms_[form].adapter.empty() ? std::nullopt : std::optional(form));
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
    case RopeType::kProportional:
      return scaled(rope.max_position_embeddings);
    case RopeType::kYarn:
      return std::max(rope.max_position_embeddings,
                      scaled(scaling.original_max_position_embeddings.value_or(rope.max_position_embeddings)));
  }
  return rope.max_position_embeddings;
}

std::string InferenceModel::sampling_text() const {
  return fmt::format(
      "max_new_tokens {}\ntemperature {}\ntop_k {}\ntop_p {}\n"
      "repetition_penalty {}\ndo_sample {}\nseed {}",
      sampling_.max_new_tokens, sampling_.temperature, sampling_.top_k, sampling_.top_p, sampling_.repetition_penalty,
      sampling_.do_sample, sampling_.seed);
}

Json InferenceModel::identity() {
  const auto hash = [](std::string_view text) {
    return fmt::format("{:08x}", extend_crc32c(0, std::as_bytes(std::span(text))));
  };
  std::string model = base_identity(model_).dump();
  if (!options_.adapter.empty()) {
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors", "fused_expert_lora.safetensors"}) {
      const fs::path file = fs::path(options_.adapter) / name;
      if (fs::exists(file)) model += fmt::format(" {:08x}", extend_crc32c(0, MappedFile(file).bytes()));
    }
  }
  Json settings = {{"sampling", sampling_text()},
                   {"dtype", std::string(name_of(run_.model.dtype))},
                   {"base_weight_dtype", run_.model.base_weight_dtype.name()},
                   {"base_weight_keep", run_.model.base_weight_keep},
                   {"expert_weight_dtype", run_.model.expert_weight_dtype.name()},
                   {"device", device_.kind == DeviceKind::kCpu ? "cpu" : "gpu"}};
  return {{"model", hash(model)}, {"settings", std::move(settings)}};
}

void InferenceModel::connect(std::span<const std::vector<int32_t>> prompts) {
  if (ranks_.size == 1) return;
  communicator_ = ranks_.connect(stream_);
  uint32_t sum = 0;
  for (const std::vector<int32_t>& prompt : prompts) sum = extend_crc32c(sum, std::as_bytes(std::span(prompt)));
  control()->check_same("prompts", fmt::format("{} prompts, checksum {:08x}", prompts.size(), sum));
  control()->check_same("sampling", sampling_text());
}

MemoryPlan InferenceModel::plan(const RunConfig& run, const GeneratorOptions& options) {
  const RankShare share = rank_share(run, device_, ranks_.rank);
  model_.store().share_among(share);
  MemoryPlan plan;
  plan.parameters = model_.store().bytes(false);
  plan.libraries = library_memory(device_, share);
  plan.activations = CachePlan(model_.decoder(), options).bytes;
  return plan;
}

namespace {

/// Packs what base_weight_dtype: nf4 would pack.
void hold_base_in_nf4(ParameterStore& store) {
  const auto formats = packed_weights(store, [](const Parameter&) { return &nf4_format(); }, {});
  for (Parameter& p : store.all()) {
    if (formats.contains(&p)) hold_frozen_in(p, nf4_format());
  }
}

/// Changed keys, and the options that change them.
struct Change {
  RunConfig run;
  std::string option;
};

/// Host memory as room for a GPU's weights, the fastest way first: the CPU reads the experts that a pass chooses, and
/// streaming brings all weights of layers in every pass.
std::vector<Change> into_host_memory(const RunConfig& run, const DecoderConfig& decoder) {
  if (run.machine.expert_parallel_size > 1) return {};  // spread experts are on the GPUs
  const auto with_params = [](Change change) {
    change.run.machine.cpu_offload.push_back(OffloadPart::kParams);
    change.option += change.option.empty() ? "--cpu-offload params" : " --cpu-offload params";
    return change;
  };
  Change on_cpu{run, "--experts-device cpu"};
  on_cpu.run.machine.experts_device = ExpertsOn::kCpu;
  const bool can_move = run.machine.experts_device == ExpertsOn::kDevice && go_together(on_cpu.run, RuleUse::kAlways);
  if (decoder.num_moe_layers() == 0 || !can_move) return {with_params({run, ""})};
  return {on_cpu, with_params({run, ""}), with_params(on_cpu)};
}

}  // namespace

std::string InferenceModel::what_fits(const GeneratorOptions& options, const MemoryLimit& limit) {
  GeneratorOptions one = options;
  one.max_sequences = 1;
  one.cache_tokens = 0;
  const auto fits = [&](const RunConfig& run) { return limit.fits(plan(run, one)); };
  if (fits(run_)) {
    const bool bounded = CachePlan(model_.decoder(), options).bounded_by_tokens();
    return fmt::format("run fewer sequences at once (--batch-size){}, or shorter ones (--max-new-tokens)",
                       bounded ? ", hold fewer of their tokens (--cache-tokens)" : "");
  }
  const bool on_gpu = device_.kind == DeviceKind::kCuda;
  for (int ranks = 2; on_gpu && ranks_.size == 1 && ranks <= cuda::device_count(); ++ranks) {
    RunConfig among = run_;
    among.machine.ranks = among.machine.ranks_of_host = ranks;
    among.machine.zero_stage = ZeroStage::kValues;
    MemoryLimit of_a_rank = limit;
    *of_a_rank.host /= ranks;
    if (of_a_rank.fits(plan(among, one))) {
      return fmt::format("it fits on {} GPUs: hone generate --ranks {}", ranks, ranks);
    }
  }
  const std::vector<Change> changes =
      on_gpu ? into_host_memory(run_, model_.decoder().config()) : std::vector<Change>{};
  const auto option_that_fits = [&] {
    const auto change = std::find_if(changes.begin(), changes.end(), [&](const Change& c) { return fits(c.run); });
    return change == changes.end() ? std::string() : change->option;
  };
  const std::string exact = option_that_fits();
  if (run_.model.base_weight_dtype.in_dtype()) {
    hold_base_in_nf4(model_.store());
    if (fits(run_)) {
      return fmt::format("it fits with --base-weight-dtype nf4, which rounds the weights{}",
                         exact.empty() ? "" : fmt::format("; or, slower, with {}, which does not", exact));
    }
    const std::string rounded = exact.empty() ? option_that_fits() : std::string();
    if (!rounded.empty()) return fmt::format("it fits with --base-weight-dtype nf4 and {}", rounded);
  }
  if (!exact.empty()) return "it fits with " + exact;
  return on_gpu ? "shard the weights over more GPUs (hone launch -n N -- generate …)"
                : "use a machine with more memory";
}

void InferenceModel::check_cache(const GeneratorOptions& options) {
  if (options.cache_tokens == 0) return;
  if (options.cache_tokens < options.max_length) {
    throw UserError(
        fmt::format("the cache holds {} tokens, but a sequence may have {}", options.cache_tokens, options.max_length),
        "--cache-tokens", fmt::format("use {} or more", options.max_length));
  }
  if (!CachePlan(model_.decoder(), options).bounded_by_tokens()) {
    throw UserError("no layer of the model keeps all tokens, so memory does not grow with them", "--cache-tokens",
                    "leave it out; --batch-size decides");
  }
}

void InferenceModel::require_memory(const GeneratorOptions& options) {
  MemoryLimit limit = memory_limit(stream_);
  if (ranks_.size > 1) limit = least_of_ranks(limit, device_, ranks_.local_size, *control());
  const MemoryPlan needed = plan(run_, options);
  if (limit.fits(needed)) return;
  throw does_not_fit("the model", needed, limit, what_fits(options, limit));
}

void InferenceModel::choose_experts_place(const GeneratorOptions& options,
                                          const std::function<void(const std::string&)>& tell) {
  if (run_.machine.experts_device != ExpertsOn::kAuto) return;
  const MemoryLimit limit = memory_limit(stream_);
  const auto fits = [&](const RunConfig& run) { return limit.fits(plan(run, options)); };
  ExpertsDevice chosen =
      experts_device_in(run_, hone::choose_experts_place(run_, {.model = model_,
                                                                .device = device_,
                                                                .pool = pool_,
                                                                .tokens = options.max_sequences,  // most passes decode
                                                                .training = false,
                                                                .fits = fits}));
  tell(chosen.line);
  run_ = std::move(chosen.config);
}

/// Prompt tokens of a pass on a GPU. Of 128 experts, 8 for each token, 2,048 tokens give each 128 rows, one tile of the
/// grouped products and often a second one that is nearly empty; 8,192 fill theirs.
constexpr int64_t kGpuPrefillTokens = 8192;

Generator& InferenceModel::load(GeneratorOptions options, const std::function<void(const std::string&)>& tell) {
  TrainableOptions nothing = TrainableOptions::nothing(options_.adapter);
  nothing.further_adapters.assign(options_.further_adapters.begin(), options_.further_adapters.end());
  hold_base_as(nothing, run_.model.base_weight_dtype, run_.model.base_weight_keep);
  nothing.ranks = rank_share(run_, device_, ranks_.rank);
  model_.set_trainable(nothing);
  for (const std::string& warning : model_.adapter_warnings()) tell("warning: " + warning);
  check_cache(options);
  if (device_.kind == DeviceKind::kCuda && run_.machine.expert_parallel_size == 1) {
    options.max_prefill_tokens = kGpuPrefillTokens;
  }
  choose_experts_place(options, tell);
  require_memory(options);
  model_.load(device_, pool_, 0, true);
  ParameterStore& store = model_.store();
  order_frozen_experts(store, pool_);
  if (communicator_) share_values(*control(), store);
  model_.decoder().prepare(stream_, options.max_length);
  if (store.expert_ranks() > 1) mesh_.emplace(*communicator_, rank_share(run_, device_, ranks_.rank));
  const PassRanks ranks = mesh_ ? PassRanks(&*mesh_) : PassRanks(communicator_.get());
  companions_.emplace(model_.decoder(), store, stream_, CompanionOptions{.ranks = ranks});
  generator_ = std::make_unique<Generator>(*companions_, options);
  return *generator_;
}

}  // namespace hone
