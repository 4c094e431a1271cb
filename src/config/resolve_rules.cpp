#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "config/config_reader.h"
#include "config/output_name.h"
#include "config/presets.h"
#include "config/resolve_rules.h"
#include "config/run_options.h"
#include "config/schema.h"
#include "core/base/contains.h"
#include "core/base/error.h"
#include "params/bucket.h"
#include "report/mlflow/mlflow_store.h"

namespace hone {

std::string where(const ResolvedConfig& config, const std::string& name) {
  const auto found = config.stated.find(name);
  return found == config.stated.end() ? name : found->second;
}

bool says_something(const ResolvedConfig& config, const KeySpec& key) {
  return config.states(key.name) && key.load(config.run) != key.default_value;
}

namespace {

void resolve_method(ResolvedConfig& config) {
  RunConfig::Model& model = config.run.model;
  std::vector<const KeySpec*> lora_keys;
  for (const KeySpec& key : schema()) {
    const bool about_lora = key.group == key_spec("lora_r").group || key.name == "adapter_name_or_path";
    if (about_lora && key.load && says_something(config, key)) lora_keys.push_back(&key);
  }
  if (lora_keys.empty()) return;
  const std::string& first = lora_keys.front()->name;
  if (!config.states("finetuning_type")) {
    model.finetuning_type = FinetuningType::kLora;
    config.notes.push_back(
        fmt::format("finetuning_type is lora, since {} is stated ({})", first, where(config, first)));
  }
  if (model.finetuning_type == FinetuningType::kLora) return;
  if (!model.adapter_name_or_path.empty()) {
    throw UserError("adapter_name_or_path continues an adapter, but finetuning_type is full",
                    where(config, "adapter_name_or_path"), "write finetuning_type: lora, or merge the adapter first");
  }
  for (const KeySpec* key : lora_keys) {
    config.notes.push_back(
        fmt::format("{} has no effect: finetuning_type is full ({})", key->name, where(config, key->name)));
  }
}

void resolve_lora(ResolvedConfig& config) {
  RunConfig::Lora& lora = config.run.lora;
  if (config.run.model.finetuning_type != FinetuningType::kLora || !config.run.model.adapter_name_or_path.empty())
    return;
  lora.r = lora.r.value_or(16);
  lora.alpha = lora.alpha.value_or(2.0 * static_cast<double>(*lora.r));
  lora.dropout = lora.dropout.value_or(0);
  if (lora.target_modules.empty() && lora.target_parameters.empty()) lora.target_modules = {"all-linear"};
}

void resolve_router(ResolvedConfig& config) {
  RunConfig::Model& model = config.run.model;
  std::vector<WholeModule>& saved = config.run.lora.modules_to_save;
  const bool lora = model.finetuning_type == FinetuningType::kLora;
  const bool listed = std::find(saved.begin(), saved.end(), WholeModule::kRouter) != saved.end();
  const bool router_saved = lora && listed;
  if (!config.states("freeze_router")) {
    model.freeze_router = lora && !router_saved;
  } else if (model.freeze_router && router_saved) {
    throw UserError("lora_modules_to_save trains the router, but freeze_router is true",
                    where(config, "lora_modules_to_save"), "keep one of them");
  }
  if (lora && !model.freeze_router && !listed) saved.push_back(WholeModule::kRouter);
}

/// Refuses lists of new tokens that have one twice.
void check_new_tokens(const ResolvedConfig& config) {
  const RunConfig::Model& model = config.run.model;
  std::set<std::string> seen;
  for (const auto& [key, tokens] :
       {std::pair("add_tokens", &model.add_tokens), std::pair("add_special_tokens", &model.add_special_tokens)}) {
    for (const std::string& token : *tokens) {
      if (!seen.insert(token).second) {
        throw UserError(fmt::format("'{}' is listed twice among the tokens to add", token), where(config, key),
                        "list it once: in add_special_tokens if generated text is to leave it out");
      }
    }
  }
}

/// Refuses arguments that the optimizer does not take, and formats of state that it does not keep.
void resolve_optimizer(ResolvedConfig& config) {
  RunConfig::Optim& optim = config.run.optim;
  if (optim.name == OptimizerName::kLion && !config.states("adam_beta2")) optim.adam_beta2 = 0.99;
  OptimizerOptions options;
  try {
    options = optimizer_options(config.run);
  } catch (const UserError& error) {
    throw UserError(error.message(), where(config, "optim_args"), error.fix());
  }
  const std::vector<const Rule*> rules = options.rules();
  const auto any = [&](auto holds) { return std::any_of(rules.begin(), rules.end(), holds); };
  const auto named = [&](std::string_view name) { return any([&](const Rule* rule) { return rule->name() == name; }); };
  if (any([](const Rule* rule) { return rule->makes_rate(); }) && config.states("learning_rate")) {
    throw UserError("adafactor's relative_step makes the learning rate itself, but learning_rate is stated",
                    where(config, "learning_rate"), "keep one of them");
  }
  const auto refuse = [&](const char* key, const std::string& why) {
    throw UserError(fmt::format("optim {} {}, but {} is stated", optim.name, why, key), where(config, key),
                    fmt::format("leave {} out", key));
  };
  const auto state_of = [](const Rule* rule) {
    TrainingFormats formats;
    rule->choose_state(formats);
    return formats;
  };
  const auto keeps_v = [&](SecondMoment kind) {
    return any([&](const Rule* rule) { return state_of(rule).second_moment == kind; });
  };
  const RunConfig::Model& model = config.run.model;
  if (model.opt_v_dtype != DType::kF32 && !keeps_v(SecondMoment::kWhole)) {
    refuse("opt_v_dtype", keeps_v(SecondMoment::kFactored)
                              ? "keeps second moments as factors of rows and columns, which are small and float32"
                              : "keeps no second moments");
  }
  if (model.opt_m_dtype == DType::kI8 && any([](const Rule* rule) { return !rule->takes_codes(); })) {
    refuse("opt_m_dtype", "keeps first moments in float32 or bfloat16");
  }
  if (model.opt_m_dtype != DType::kF32 && !any([&](const Rule* rule) { return state_of(rule).has_m; })) {
    refuse("opt_m_dtype", "keeps no first moments here");
  }
  if (config.run.machine.device.starts_with("cuda")) options.require({DeviceKind::kCuda, 0}, where(config, "optim"));
  std::vector<std::string> unused;
  if (!named("adamw")) unused.push_back("adam_epsilon");
  if (!named("adamw") && !named("lion")) unused.insert(unused.end(), {"adam_beta1", "adam_beta2"});
  for (const std::string& key : unused) {
    if (says_something(config, key_spec(key))) {
      config.notes.push_back(fmt::format("{} has no effect: optim is {} ({})", key, optim.name, where(config, key)));
    }
  }
}

/// Nested scales are a matter of nf4, and have a format of their own without them.
void resolve_nf4_scales(ResolvedConfig& config) {
  constexpr const char* kNested = "bnb_4bit_use_double_quant";
  RunConfig::Model& model = config.run.model;
  if (!config.states(kNested)) return;
  bool any = false;
  const auto resolve = [&]<class Format>(const char* name, Format& format) {
    const bool nested = format == Format(nf4_format()), plain = format == Format(nf4_float_scales_format());
    if (plain && model.nested_scales) {
      throw UserError(fmt::format("{} is true, but {} is nf4_float_scales", kNested, name), where(config, kNested),
                      "write nf4, which has nested scales, or leave the other out");
    }
    if (nested && !model.nested_scales) format = Format(nf4_float_scales_format());
    any |= nested || plain;
  };
  resolve("base_weight_dtype", model.base_weight_dtype);
  resolve("expert_weight_dtype", model.expert_weight_dtype);
  if (!any && !model.nested_scales)
    config.notes.push_back(fmt::format("{} has no effect: no weight is nf4 ({})", kNested, where(config, kNested)));
}

/// Notes on a packed base.
void note_base_weights(ResolvedConfig& config) {
  const RunConfig::Model& model = config.run.model;
  if (model.base_weight_dtype.in_dtype()) {
    if (!model.base_weight_keep.empty()) {
      config.notes.push_back(fmt::format("base_weight_keep has no effect: base_weight_dtype is dtype ({})",
                                         where(config, "base_weight_keep")));
    }
    return;
  }
  if (model.base_weight_dtype.packed() == &packed_int8_format() && config.states("base_weight_dtype")) {
    config.notes.push_back(
        "base_weight_dtype int8: a scale for each row and products in dtype; LLM.int8() of bitsandbytes multiplies in "
        "int8 and keeps outliers of activations apart");
  }
}

/// Notes on products in 8-bit floats.
void note_fp8(ResolvedConfig& config) {
  const RunConfig::Model& model = config.run.model;
  const auto note_unless_on = [&](bool changed, const char* key) {
    if (model.fp8 != Fp8Recipe::kOff || !changed) return;
    config.notes.push_back(fmt::format("{} has no effect: fp8 is off ({})", key, where(config, key)));
  };
  note_unless_on(!model.fp8_keep.empty(), "fp8_keep");
  note_unless_on(!model.fp8_weight_gradients, "fp8_weight_gradients");
  if (model.fp8 != Fp8Recipe::kOff && config.run.machine.device.starts_with("cpu")) {
    config.notes.push_back("fp8 on a CPU: the same rounding as on a GPU, multiplied in float32; slower, not faster");
  }
}

void resolve_precision(ResolvedConfig& config) {
  RunConfig::Model& model = config.run.model;
  if (config.run.optim.name == OptimizerName::kAdamw8bit) {
    for (auto [name, dtype] : {std::pair{"opt_m_dtype", &model.opt_m_dtype}, {"opt_v_dtype", &model.opt_v_dtype}}) {
      if (config.states(name) && *dtype != DType::kI8) {
        throw UserError(fmt::format("optim adamw_8bit has moments of 8 bits, but {} is {}", name, name_of(*dtype)),
                        where(config, name), "keep one of them: optim: adamw takes every dtype");
      }
      *dtype = DType::kI8;
    }
  }
  resolve_nf4_scales(config);
  note_base_weights(config);
  note_fp8(config);
}

/// The global batch from tokens_per_step and gradient_accumulation_steps; 0 if they do not determine one.
int64_t global_batch_of_tokens(const ResolvedConfig& config) {
  const RunConfig& run = config.run;
  if (!run.schedule.tokens_per_step) return 0;
  if (!run.data.max_length) {
    throw UserError("tokens_per_step needs max_length", where(config, "tokens_per_step"),
                    "state max_length, or global_batch_size instead");
  }
  if (*run.schedule.tokens_per_step % *run.data.max_length != 0) {
    throw UserError(fmt::format("tokens_per_step {} is not a multiple of max_length {}", *run.schedule.tokens_per_step,
                                *run.data.max_length),
                    where(config, "tokens_per_step"), "state a multiple, or global_batch_size instead");
  }
  return *run.schedule.tokens_per_step / *run.data.max_length;
}

/// " × 4 ranks"; "" for one rank.
std::string times_ranks(const ResolvedConfig& config) {
  const int64_t ranks = config.run.machine.ranks;
  return ranks > 1 ? fmt::format(" × {} ranks", ranks) : "";
}

/// The largest divisor of `number` that is at most `most`.
int64_t largest_divisor(int64_t number, int64_t most) {
  int64_t divisor = std::min(number, most);
  while (number % divisor != 0) --divisor;
  return divisor;
}

/// What to change for a step of `total` sequences that `part` × ranks does not divide; first, what trains the same.
std::string undivided_fix(int64_t total, int64_t part, int64_t ranks, const std::string& name) {
  const std::string multiple = fmt::format("or state a multiple of {}", part * ranks);
  if (total % ranks == 0) {
    return fmt::format("set {}: {}, with which the run trains the same; {}", name, largest_divisor(total / ranks, part),
                       multiple);
  }
  const int64_t fewer = largest_divisor(total, ranks);
  return fmt::format("{} sequences cannot be divided among {} ranks: start {}, with which the run trains the same; {}",
                     total, ranks, fewer, multiple);
}

/// Returns total / (part × ranks), which must be an integer.
int64_t divided(const ResolvedConfig& config, int64_t total, int64_t part, const char* name) {
  const int64_t of_ranks = part * config.run.machine.ranks;
  if (total % of_ranks == 0) return total / of_ranks;
  throw UserError(
      fmt::format("global_batch_size {} is not a multiple of {} {}{}", total, name, part, times_ranks(config)),
      where(config, config.states("global_batch_size") ? "global_batch_size" : "tokens_per_step"),
      undivided_fix(total, part, config.run.machine.ranks, name));
}

/// dp_shard_size as a number of ranks.
int64_t stated_shard_size(const ResolvedConfig& config) {
  const RunConfig::Machine& machine = config.run.machine;
  const std::string& text = machine.dp_shard_size;
  if (text == "all") return machine.ranks;
  if (text == "host") {
    if (machine.ranks_of_host > 0) return machine.ranks_of_host;
    throw UserError("ranks cannot share by host: the hosts have different numbers of them, or not consecutive ones",
                    where(config, "dp_shard_size"), "write dp_shard_size: N, or start the same number on each host");
  }
  double number = 0;
  if (parse_number(text, number) && number >= 1 && number <= 1e6 && number == std::floor(number)) {
    return static_cast<int64_t>(number);
  }
  throw UserError(fmt::format("dp_shard_size is '{}'", text), where(config, "dp_shard_size"),
                  "write all, host or a number of ranks");
}

/// The ranks of a shard group, from dp_shard_size and dp_replicate_size.
void resolve_shard_group(ResolvedConfig& config) {
  RunConfig::Machine& machine = config.run.machine;
  int64_t size = stated_shard_size(config);
  if (machine.dp_replicate_size) {
    const int64_t groups = *machine.dp_replicate_size;
    if (!config.states("dp_shard_size")) {
      if (machine.ranks % groups != 0) {
        throw UserError(fmt::format("{} groups do not divide {} ranks", groups, machine.ranks),
                        where(config, "dp_replicate_size"), "choose a divisor of the number of ranks");
      }
      size = machine.ranks / groups;
    } else if (size * groups != machine.ranks) {
      throw UserError(fmt::format("dp_replicate_size {} groups of dp_shard_size {} ({}) ranks are not {} ranks", groups,
                                  size, where(config, "dp_shard_size"), machine.ranks),
                      where(config, "dp_replicate_size"), "leave one of the two out: one fixes the other");
    }
  }
  require_shard_size(size, machine.ranks, where(config, "dp_shard_size"));
  const bool by_number = machine.dp_shard_size != "host" || machine.dp_replicate_size;
  if (size > 1 && size < machine.ranks && machine.zero_stage == ZeroStage::kNone && by_number) {
    const char* key = config.states("dp_shard_size") ? "dp_shard_size" : "dp_replicate_size";
    throw UserError(fmt::format("groups of {} ranks share what zero_stage says, but that is 0: nothing", size),
                    where(config, key), fmt::format("write zero_stage: 3, or leave {} out", key));
  }
  machine.shard_size = size < machine.ranks ? size : 0;
}

/// Checks the number of ranks and the options that depend on it.
void resolve_ranks(ResolvedConfig& config) {
  const RunConfig& run = config.run;
  const RunConfig::Machine& machine = run.machine;
  if (machine.num_gpus && *machine.num_gpus != machine.ranks) {
    throw UserError(
        fmt::format("num_gpus is {}, but {} {} started", *machine.num_gpus, machine.ranks,
                    machine.ranks == 1 ? "rank was" : "ranks were"),
        where(config, "num_gpus"),
        fmt::format("start one rank for each: hone launch -n {} train …; or leave num_gpus out", *machine.num_gpus));
  }
  if (machine.ranks > 1) resolve_shard_group(config);
}

/// Refuses keys that do not go together.
void check_together(const ResolvedConfig& config, RuleUse use) {
  const std::optional<Refusal> refusal = find_refusal(config.run, use);
  if (!refusal) return;
  const auto stated =
      std::find_if(refusal->keys.begin(), refusal->keys.end(), [&](const char* key) { return config.states(key); });
  refuse(config, stated == refusal->keys.end() ? refusal->keys.front() : *stated, refusal->why, refusal->instead);
}

void resolve_batch(ResolvedConfig& config) {
  RunConfig::Schedule& batch = config.run.schedule;
  const int64_t of_tokens = global_batch_of_tokens(config);
  const bool global = config.states("global_batch_size") || of_tokens > 0;
  if (of_tokens > 0 && config.states("global_batch_size") && of_tokens != batch.global_batch_size) {
    throw UserError(
        fmt::format("tokens_per_step {} means a global_batch_size of {}, but it is {} ({})", *batch.tokens_per_step,
                    of_tokens, batch.global_batch_size, where(config, "global_batch_size")),
        where(config, "tokens_per_step"), "keep one of them");
  }
  if (of_tokens > 0) batch.global_batch_size = of_tokens;
  const bool micro = config.states("per_device_train_batch_size");
  const bool accumulation = config.states("gradient_accumulation_steps");
  if (global && accumulation && !micro) {
    batch.per_device_train_batch_size =
        divided(config, batch.global_batch_size, batch.gradient_accumulation_steps, "gradient_accumulation_steps");
  } else if (global && !accumulation) {
    batch.gradient_accumulation_steps =
        divided(config, batch.global_batch_size, batch.per_device_train_batch_size, "per_device_train_batch_size");
  }
  const int64_t product =
      batch.per_device_train_batch_size * batch.gradient_accumulation_steps * config.run.machine.ranks;
  if (global && product != batch.global_batch_size) {
    throw UserError(
        fmt::format(
            "per_device_train_batch_size {} × gradient_accumulation_steps {}{} is {}, but global_batch_size is {}",
            batch.per_device_train_batch_size, batch.gradient_accumulation_steps, times_ranks(config), product,
            batch.global_batch_size),
        where(config, config.states("global_batch_size") ? "global_batch_size" : "tokens_per_step"),
        "leave one of the three out: two fix the third");
  }
  batch.global_batch_size = product;
}

/// Limits the size of a micro-batch: its host memory is allocated before the plan can report that it does not fit. Call
/// it after resolve_evaluation.
void check_micro_batches(const ResolvedConfig& config) {
  constexpr int64_t kMostTokens = int64_t{1} << 30, kUsualLength = 4096;
  const int64_t length = config.run.data.max_length.value_or(kUsualLength);
  for (const auto& [key, batch] :
       {std::pair{"per_device_train_batch_size", config.run.schedule.per_device_train_batch_size},
        std::pair{"per_device_eval_batch_size", config.run.eval.per_device_eval_batch_size}}) {
    if (batch <= kMostTokens / length) continue;
    throw UserError(fmt::format("{} {} × max_length {} is more than a micro-batch can be: {} tokens", key, batch,
                                length, kMostTokens),
                    where(config, key), "lower it: gradient_accumulation_steps makes a step larger");
  }
}

void resolve_names(ResolvedConfig& config) {
  name_output(config);
  RunConfig::Report& report = config.run.report;
  const std::filesystem::path folder = std::filesystem::path(report.output_dir).lexically_normal();
  const std::filesystem::path last = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  if (!config.states("run_name")) report.run_name = last.string();
  if (!config.states("logging_dir")) report.logging_dir = (folder / "runs").string();
  if (!config.states("data_seed")) config.run.machine.data_seed = config.run.machine.seed;
}

void resolve_reports(ResolvedConfig& config) {
  constexpr int64_t kUsualPort = 8000;
  RunConfig::Report& report = config.run.report;
  if (contains(report.report_to, ReportTarget::kPrometheus) && !config.states("metrics_port"))
    report.metrics_port = kUsualPort;
  if (!report.mlflow_tracking_uri.empty()) check_mlflow_uri(report.mlflow_tracking_uri);
  struct Setting {
    const char* key;
    bool stated;
    ReportTarget tracker;
  };
  const Setting settings[] = {{"mlflow_tracking_uri", !report.mlflow_tracking_uri.empty(), ReportTarget::kMlflow},
                              {"mlflow_experiment_name", !report.mlflow_experiment_name.empty(), ReportTarget::kMlflow},
                              {"mlflow_run_id", !report.mlflow_run_id.empty(), ReportTarget::kMlflow},
                              {"mlflow_tags", !report.mlflow_tags.empty(), ReportTarget::kMlflow},
                              {"wandb_project", !report.wandb_project.empty(), ReportTarget::kWandb},
                              {"wandb_entity", !report.wandb_entity.empty(), ReportTarget::kWandb},
                              {"wandb_name", !report.wandb_name.empty(), ReportTarget::kWandb},
                              {"wandb_run_id", !report.wandb_run_id.empty(), ReportTarget::kWandb},
                              {"wandb_mode", !report.wandb_mode.empty(), ReportTarget::kWandb},
                              {"wandb_tags", !report.wandb_tags.empty(), ReportTarget::kWandb},
                              {"trackio_project", !report.trackio_project.empty(), ReportTarget::kTrackio},
                              {"trackio_space_id", !report.trackio_space_id.empty(), ReportTarget::kTrackio}};
  for (const auto& [key, stated, tracker] : settings) {
    if (config.states(key) && stated && !contains(report.report_to, tracker)) {
      config.notes.push_back(
          fmt::format("{} has no effect: report_to does not name {} ({})", key, tracker, where(config, key)));
    }
  }
}

}  // namespace

void apply_rules(ResolvedConfig& config, RuleUse use) {
  resolve_method(config);
  apply_preset(config);
  resolve_revisions(config);
  resolve_lora(config);
  resolve_router(config);
  check_new_tokens(config);
  resolve_optimizer(config);
  resolve_precision(config);
  resolve_batch(config);
  resolve_ranks(config);
  check_together(config, use);
  resolve_rate(config);
  resolve_warmup(config);
  resolve_data(config);
  resolve_evaluation(config);
  check_micro_batches(config);
  resolve_checkpoints(config);
  resolve_names(config);
  resolve_reports(config);
}

std::vector<std::string> default_lines(const ResolvedConfig& config) {
  static const char* const kDisputed[] = {
      "num_train_epochs",
      "max_length",
      "packing",
      "train_on",
      "per_device_train_batch_size",
      "learning_rate",
      "lr_scheduler_type",
      "warmup_ratio",
      "weight_decay",
      "adam_beta2",
      "adam_epsilon",
      "max_grad_norm",
      "router_aux_loss_coef",
      "lora_r",
      "lora_alpha",
      "gradient_checkpointing",
      "seed",
      "logging_steps",
      "save_steps",
      "eval_steps",
      "save_total_limit",
  };
  const RunConfig& run = config.run;
  // A key without effect in this run gets no line.
  const auto is_idle = [&](const std::string& name) {
    return (name == "num_train_epochs" && run.schedule.max_steps) ||
           (name == "eval_steps" && run.eval.eval_strategy != Cadence::kSteps) ||
           (name == "save_steps" && run.checkpoint.save_strategy != Cadence::kSteps);
  };
  const auto is_stated = [&](const std::string& name) {
    const auto& families = key_families();
    return config.states(name) || std::any_of(families.begin(), families.end(), [&](const auto& family) {
             return std::find(family.begin(), family.end(), name) != family.end() &&
                    std::any_of(family.begin(), family.end(), [&](const auto& key) { return config.states(key); });
           });
  };
  std::vector<std::string> lines;
  for (const char* name : kDisputed) {
    const KeySpec& key = key_spec(name);
    const bool of_lora = key.group == key_spec("lora_r").group;
    if (is_stated(name) || is_idle(name) || (of_lora && run.model.finetuning_type != FinetuningType::kLora)) continue;
    const Json value = key.load(run);
    if (!value.is_null()) {
      lines.push_back(fmt::format("{} {}", name, value.is_string() ? value.get<std::string>() : value.dump()));
    }
  }
  return lines;
}

}  // namespace hone
