#include "app/estimate/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "app/estimate/spread_advice.h"
#include "app/model_source.h"
#include "app/output.h"
#include "config/resolve.h"
#include "config/run_options.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/gpu_models.h"
#include "core/cuda/planned_device.h"
#include "core/stream/process_kernels.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "kernels/cuda/kernel_limit.h"
#include "params/adapter_kind.h"
#include "params/frozen_weights.h"
#include "report/humanise.h"
#include "report/table.h"
#include "report/terminal.h"
#include "session/device_facts.h"
#include "train/plan/experts_device.h"
#include "train/plan/fitting_setting.h"
#include "train/plan/memory_fit.h"
#include "train/plan/memory_rows.h"
#include "train/plan/offload_choice.h"
#include "train/plan/planned_run.h"
#include "train/plan/recompute.h"
#include "train/plan/run_vocabulary.h"
#include "train/save/disk_needs.h"
#include "weights/other_weights.h"

namespace hone {

namespace {

/// Documents of a packed micro-batch are rarely shorter on average; their number hardly matters.
constexpr int64_t kShortDocument = 32;
constexpr int64_t kShortestLength = 128;

/// The device of a name, as training chooses it; but a GPU need not be there.
Device device_to_plan_for(const std::string& name) {
  if (name == "auto" || name == "cpu" || cuda::device_count() > 0) {
    return choose_device(name, "device", DeviceUse::kPlan);
  }
  return kPlannedGpu;
}

/// The device that is planned for, and what it has.
struct Target {
  /// `memory`, `host`: bytes, 0 if they are not stated.
  Target(Device on, int64_t memory, int64_t host) : device(on), stream(on, pool) {
    known = memory > 0 || !is_planned(device);
    if (memory > 0) {
      limit.comfortable = limit.most = memory;
      limit.initialised = false;
      if (device.kind == DeviceKind::kCpu) limit.host = std::nullopt;
    } else if (known) {
      limit = memory_limit(stream);
    } else {
      limit.comfortable = limit.most = std::numeric_limits<int64_t>::max();
    }
    if (host == 0) return;
    if (!limit.host) {
      throw UserError("the device is the CPU, whose memory is the host's", "--host-memory", "use --memory");
    }
    limit.host = host;
  }

  bool fits(const MemoryPlan& plan) const { return limit.fits(plan); }
  /// Bytes for a plan and its libraries; 0: not known.
  int64_t available(const MemoryPlan& plan) const { return known ? limit.available(plan) : 0; }
  /// Bytes of the plan and its libraries.
  int64_t whole(const MemoryPlan& plan) const {
    return plan.total() + plan.libraries.all + (limit.host ? 0 : plan.host());
  }
  /// Bytes of host memory for offloading; 0: not known.
  int64_t host_available() const {
    return limit.host && *limit.host < std::numeric_limits<int64_t>::max() ? *limit.host : 0;
  }

  Device device;
  ThreadPool pool{1};
  Stream stream;
  bool known = true;
  MemoryLimit limit;
};

/// A run that could be made instead.
struct Variant {
  std::string name;
  RunConfig config;
  FittingLevel recomputed;

  const MemoryPlan& plan() const { return recomputed.plan; }
};

/// The plan of the first of these levels that fits, as training takes it.
FittingLevel plan_levels(const RunConfig& config, const std::vector<std::string>& levels, Target& target) {
  return choose_level(levels, target.limit,
                      [&](const RecomputePolicy& policy) { return plan_memory(config, policy, target.stream); });
}

bool fits_at(const RunConfig& config, const std::string& level, Target& target) {
  return plan_levels(config, {level}, target).fits;
}

/// A model's config.json, not a configuration of a run.
bool is_model_config(const std::string& target) {
  if (!target.ends_with(".json") || !std::filesystem::is_regular_file(target)) return false;
  const Json json = read_json(target);
  return json.is_object() && (json.contains("architectures") || json.contains("model_type")) &&
         !json.contains("model_name_or_path");
}

bool is_config(const std::string& target) {
  const std::string extension = std::filesystem::path(target).extension().string();
  return !is_model_config(target) && !std::filesystem::is_directory(target) &&
         (extension == ".yaml" || extension == ".yml" || extension == ".json" || std::filesystem::exists(target));
}

/// GPUs of a usual host.
constexpr int64_t kUsualGpus = 8;

RunConfig read_run(const EstimateOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  refuse_gguf_file(options.target);
  const bool file = is_config(options.target);
  const bool key = options.target.find('=') != std::string::npos && !std::filesystem::exists(options.target);
  if (!file) {
    overrides.insert(overrides.begin(), key ? options.target : "model_name_or_path=" + Json(options.target).dump());
  }
  const int64_t of_host = options.ranks_of_host > 0 ? options.ranks_of_host : std::min(options.ranks, kUsualGpus);
  const ResolvedConfig config = load_config(file ? options.target : "", overrides, {options.ranks, of_host});
  require_keys(config, {"model_name_or_path"});
  return config.run;
}

RunConfig as_full(RunConfig config) {
  if (config.model.finetuning_type == FinetuningType::kFull) return config;
  config.model.finetuning_type = FinetuningType::kFull;
  config.model.expert_weight_dtype = {};
  config.model.base_weight_dtype = {};
  config.model.adapter_name_or_path.clear();
  config.model.freeze_router = false;
  if (gathers_stepped_values(config)) {  // weights cannot be in host memory between uses then
    std::erase_if(config.machine.cpu_offload,
                  [](OffloadPart part) { return part == OffloadPart::kParams || part == OffloadPart::kExperts; });
    config.machine.offload_expert_layers.reset();
  }
  return config;
}

RunConfig as_lora(RunConfig config, bool sparse) {
  if (config.model.finetuning_type == FinetuningType::kLora) return config;
  config.model.finetuning_type = FinetuningType::kLora;
  config.model.freeze_router = true;
  config.model.freeze_parameters.clear();
  config.model.trainable_parameters.clear();
  config.lora = {};
  config.lora.target_modules =
      sparse ? std::vector<std::string>{"attention", "all-experts"} : std::vector<std::string>{"all-linear"};
  return config;
}

std::string lora_name(const RunConfig& config) {
  std::string targets;
  for (const auto* names : {&config.lora.target_modules, &config.lora.target_parameters}) {
    for (const std::string& name : *names) targets += (targets.empty() ? "" : " + ") + name;
  }
  const BaseFormat base = config.model.base_weight_dtype;
  return fmt::format("LoRA r {}{}{}", config.lora.r.value_or(16), targets.empty() ? "" : " on " + targets,
                     base.in_dtype() ? "" : fmt::format(", base {}", base.name()));
}

const std::string& smallest_level() { return recompute_levels().back(); }

std::string with_level(const std::string& name, const std::string& level) {
  if (level == recompute_levels().front()) return name;
  return name + ", gradient checkpointing" + (level == smallest_level() ? "" : " of " + level_setting(level));
}

RunConfig with_base(RunConfig config, BaseFormat base) {
  config.model.base_weight_dtype = base;
  return config;
}

/// The place among the variants of LoRA with checkpointing and the configuration's base, or one in dtype.
constexpr size_t kSmallLora = 3;

/// Full fine-tuning, LoRA, and LoRA of a base in nf4 (beside that in dtype, if the configuration's base is nf4), each
/// with and without checkpointing.
std::vector<Variant> variants_of(const RunConfig& config, bool sparse, Target& target) {
  const RunConfig lora = as_lora(config, sparse);
  const BaseFormat base = lora.model.base_weight_dtype, nf4(nf4_format());
  std::vector<Variant> variants;
  for (const RunConfig& run :
       {as_full(config), with_base(lora, base == nf4 ? BaseFormat() : base), with_base(lora, nf4)}) {
    const std::string name = run.model.finetuning_type == FinetuningType::kFull ? "full" : lora_name(run);
    for (const std::string& level : {recompute_levels().front(), smallest_level()}) {
      variants.push_back({with_level(name, level), run, plan_levels(run, {level}, target)});
    }
  }
  return variants;
}

/// What training would run: with gradient_checkpointing auto, the first level that fits.
Variant configured(const RunConfig& config, Target& target) {
  FittingLevel choice = plan_levels(config, allowed_levels(config.model.gradient_checkpointing), target);
  const std::string name = config.model.finetuning_type == FinetuningType::kFull ? "full" : lora_name(config);
  return {with_level(name, choice.level), config, std::move(choice)};
}

/// Replaces experts_device: auto by what a run of the longest samples would choose, and says what and why; "" if it is
/// stated.
std::string choose_experts_device(RunConfig& config, Target& target) {
  if (config.machine.experts_device != ExpertsOn::kAuto) return "";
  const auto planned = planned_model(find_model(config.model.model_name_or_path), config.model.dtype,
                                     expert_format_of(config), config.model.vocab_rows);
  planned->set_trainable(trainable_options(config, target.device));
  const std::string level = allowed_levels(config.model.gradient_checkpointing).back();
  ThreadPool pool(rank_threads(static_cast<int>(config.machine.threads.value_or(0)), 1));
  ExpertsDevice chosen = experts_device_in(
      config,
      choose_experts_place(config, {.model = *planned,
                                    .device = target.device,
                                    .pool = pool,
                                    .tokens = config.schedule.per_device_train_batch_size * *config.data.max_length,
                                    .fits = [&](const RunConfig& other) { return fits_at(other, level, target); }}));
  config = std::move(chosen.config);
  return chosen.line;
}

/// Replaces cpu_offload: auto by what a run of the longest samples would choose, and says what and why; "" if it is
/// stated.
std::string choose_offloaded(RunConfig& config, Target& target) {
  if (!chooses_offload(config)) return "";
  OffloadChoice choice = choose_offload(config, target.limit, RunUse::kTraining,
                                        [&](const RunConfig& other, const RecomputePolicy& recompute) {
                                          return plan_memory(other, recompute, target.stream);
                                        });
  config = with_offload(std::move(config), choice.parts);
  return choice.line;
}

/// The longest max_length, by halving, with which the run fits; none if not even a short one does.
std::optional<int64_t> length_that_fits(RunConfig config, Target& target) {
  config.schedule.per_device_train_batch_size = 1;
  for (int64_t length = *config.data.max_length; length >= kShortestLength; length /= 2) {
    config.data.max_length = length;
    if (fits_at(config, smallest_level(), target)) return length;
  }
  return std::nullopt;
}

/// How many GPUs like the target hold a run for one together; none if not even kMost do.
std::optional<int64_t> gpus_that_fit(RunConfig config, Target& target) {
  constexpr int64_t kMost = 64;
  if (config.machine.ranks > 1 || target.device.kind != DeviceKind::kCuda) return std::nullopt;
  config.machine.zero_stage = ZeroStage::kValues;
  for (config.machine.ranks = 2; config.machine.ranks <= kMost; config.machine.ranks *= 2) {
    if (!go_together(config)) return std::nullopt;
    if (fits_at(config, smallest_level(), target)) return config.machine.ranks;
  }
  return std::nullopt;
}

constexpr const char* kNothingFits = "No setting makes it fit";

/// What makes the run fit, in the order of what it costs. `experts_fit`: in 8 bits; `sparse`: the model has experts.
std::string advice(const std::vector<Variant>& variants, const Variant& chosen, bool experts_fit, bool sparse,
                   Target& target) {
  if (!target.known) return "Say how much it has (--memory 80GB) to see what fits.";
  if (target.fits(chosen.plan())) return "It fits.";
  // On a CPU 8 bits are multiplied as they are, and faster.
  const bool int8_experts = experts_fit && experts_device_of(chosen.config, target.device).kind == DeviceKind::kCpu &&
                            chosen.config.machine.expert_parallel_size == 1;
  const auto fits = [&](const RunConfig& config, const std::string& level) { return fits_at(config, level, target); };
  const auto setting = fitting_setting(chosen.config, {target.limit.host.has_value(), int8_experts, fits, sparse});
  if (setting) return fmt::format("It fits with {}.", *setting);
  const Variant& smallest = variants[kSmallLora];
  if (int8_experts && !target.fits(smallest.plan())) {
    RunConfig run = smallest.config;
    run.model.expert_weight_dtype = ExpertFormat(int8_format());
    if (fits_at(run, smallest_level(), target)) {
      return "It fits with finetuning_type: lora, expert_weight_dtype: int8 and gradient_checkpointing: true.";
    }
  }
  const int64_t length = *chosen.config.data.max_length;
  if (const auto shorter = length_that_fits(chosen.config, target)) {
    if (*shorter == length) {
      return "It fits with per_device_train_batch_size: 1 and gradient_checkpointing: true (global_batch_size keeps "
             "the step as large).";
    }
    return fmt::format("It fits with max_length: {}, per_device_train_batch_size: 1 and gradient_checkpointing: true.",
                       *shorter);
  }
  if (target.fits(smallest.plan())) return "It fits with finetuning_type: lora and gradient_checkpointing: true.";
  if (target.fits(variants.back().plan())) {
    return "It fits with finetuning_type: lora, base_weight_dtype: nf4 and gradient_checkpointing: true.";
  }
  if (const auto shorter = length_that_fits(smallest.config, target)) {
    return fmt::format(
        "It fits with finetuning_type: lora, max_length: {}, per_device_train_batch_size: 1 and "
        "gradient_checkpointing: true.",
        *shorter);
  }
  std::string several;
  if (const auto gpus = gpus_that_fit(chosen.config, target)) {
    several = fmt::format(" {} such GPUs hold it with zero_stage: 3 and gradient_checkpointing: true.", *gpus);
  }
  return fmt::format("{}: LoRA with gradient checkpointing needs {}, the weights alone {}.{}", kNothingFits,
                     human_bytes(target.whole(smallest.plan())), human_bytes(smallest.plan().parameters.weights),
                     several);
}

std::string variants_table(const std::vector<Variant>& variants, const Target& target, bool color) {
  Table table({{"method"},
               {"weights", Align::kRight, 2},
               {"master", Align::kRight, 5},
               {"gradients", Align::kRight, 4},
               {"optimizer", Align::kRight, 3},
               {"activations", Align::kRight, 1},
               {"total", Align::kRight},
               {""}});
  for (const Variant& variant : variants) {
    const ParameterBytes& bytes = variant.plan().parameters;
    table.add_row({variant.name, human_bytes(bytes.weights), human_bytes(bytes.master), human_bytes(bytes.gradients),
                   human_bytes(bytes.moments), human_bytes(variant.plan().activations + variant.plan().batch),
                   human_bytes(target.whole(variant.plan())),
                   !target.known                 ? ""
                   : target.fits(variant.plan()) ? "fits"
                                                 : "too large"});
  }
  return table.to_string(color, 2, Terminal::of(1).table_width());
}

std::string chosen_table(const Variant& chosen, const Target& target, bool color) {
  const std::vector<MemoryRow> rows = memory_rows(chosen.plan(), precision_of(chosen.config),
                                                  level_note(chosen.recomputed.level, chosen.recomputed.on_host));
  const std::string host = host_memory_line(chosen.plan(), target.host_available());
  return memory_table(rows, static_cast<uint64_t>(target.available(chosen.plan())), color) +
         (host.empty() ? "" : "  " + host + "\n");
}

/// What the run writes: as one rank would, since files are those of all.
DiskNeeds disk_needs_of(RunConfig config, const ModelSource& source) {
  RunConfig::Machine& machine = config.machine;
  machine.ranks = machine.ranks_of_host = machine.expert_parallel_size = 1;
  machine.shard_size = 0;
  machine.zero_stage = ZeroStage::kNone;
  machine.experts_device = ExpertsOn::kDevice;
  machine.cpu_offload.clear();
  machine.cpu_expert_layers.reset();
  machine.offload_expert_layers.reset();
  const auto model = planned_model(source, config.model.dtype, expert_format_of(config), config.model.vocab_rows);
  model->set_trainable(trainable_options(config, Device{}));
  model->store().allocate_dry(Device{});
  return disk_needs(model->store(), config);
}

/// "; 20 GB are free in out" where that is too little; "" where it suffices or is not known.
std::string lacking_disk(const DiskNeeds& needs, const std::string& output_dir) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::absolute(output_dir, error);
  while (!folder.empty() && folder != folder.parent_path() && !std::filesystem::exists(folder, error)) {
    folder = folder.parent_path();
  }
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || space.available >= static_cast<uintmax_t>(needs.total())) return "";
  return fmt::format(" Only {} are free in {}.", human_bytes(space.available), folder.string());
}

Json number_or_null(const std::optional<int64_t>& number) { return number ? Json(*number) : Json(nullptr); }

Json json_of(const Variant& variant) {
  const ParameterBytes& bytes = variant.plan().parameters;
  return {{"name", variant.name},
          {"ranks", variant.config.machine.ranks},
          {"shard_size", precision_of(variant.config).ranks},
          {"expert_parallel_size", variant.config.machine.expert_parallel_size},
          {"experts_device", name_of(variant.config.machine.experts_device)},
          {"cpu_expert_layers", number_or_null(variant.config.machine.cpu_expert_layers)},
          {"cpu_offload", names_of(variant.config.machine.cpu_offload)},
          {"offload_expert_layers", number_or_null(variant.config.machine.offload_expert_layers)},
          {"weights", bytes.weights},
          {"master", bytes.master},
          {"gradients", bytes.gradients},
          {"optimizer", bytes.moments},
          {"activations", variant.plan().activations},
          {"batch", variant.plan().batch},
          {"libraries", variant.plan().libraries.all},
          {"host", variant.plan().host()},
          {"total", variant.plan().total() + variant.plan().libraries.all}};
}

}  // namespace

MemoryPlan plan_memory(const RunConfig& config, const RecomputePolicy& recompute, Stream& stream) {
  check_expert_format(expert_format_of(config), experts_device_of(config, stream.device()), "device");
  check_fp8(config.model.fp8, stream);
  optimizer_options(config).require(stream.device(), "optim");
  auto planned = planned_model(find_model(config.model.model_name_or_path), config.model.dtype,
                               expert_format_of(config), config.model.vocab_rows);
  planned->set_trainable(trainable_options(config, stream.device()));
  const DescribedModel described = describe_model(config, std::move(planned));
  LoadedModel& model = *described.model;
  model.store().allocate_dry(stream.device());
  const DecoderConfig& decoder = model.decoder().config();
  const int64_t batch = config.schedule.per_device_train_batch_size, length = config.data.max_length.value();
  // Rows of experts are numbered with 32 bits.
  if (length > std::numeric_limits<int32_t>::max() / batch / std::max<int64_t>(1, decoder.moe.num_experts_per_tok)) {
    throw UserError(fmt::format("{} × {} tokens at once are more than a micro-batch can be", batch, length),
                    "per_device_train_batch_size, max_length",
                    "accumulate gradients instead: gradient_accumulation_steps");
  }
  const int64_t documents = config.data.packing ? batch * length / kShortDocument + 1 : batch;
  EngineOptions options =
      engine_options(described, {batch * length, documents, batch * length, length}, stream.device());
  options.recompute = recompute;
  model.decoder().prepare(stream, length);
  return Engine(model.decoder(), model.store(), stream, options).plan();
}

namespace {

/// Plans for a GPU by its name: its memory, its kernels, and no GPU of this machine.
EstimateOptions for_gpu(EstimateOptions options, const GpuModel& gpu) {
  if (options.memory > 0) {
    throw UserError("the memory is given twice", "--memory, --gpu", "leave out one: --gpu has the memory of the GPU");
  }
  options.memory = gpu.memory;
  options.overrides.push_back("device=cuda");
  limit_kernels_of_process(cuda::kernel_limit_of(gpu));
  return options;
}

/// "NVIDIA RTX 4090 (compute capability 8.9, kernels of tier sm80, 165.2 TFLOP/s in bfloat16 by its data sheet)"
std::string gpu_text(const GpuModel& gpu) {
  return fmt::format(
      "NVIDIA {} (compute capability {}.{}, kernels of tier {}, {:g} TFLOP/s in bfloat16 by its data sheet)", gpu.name,
      gpu.compute_capability / 10, gpu.compute_capability % 10, name_of(kernel_limit_of_process().tier),
      gpu.bf16_tflops);
}

/// The configured run beside others, and what makes it fit. Chooses what the configuration leaves open.
struct Comparison {
  std::string experts, offloaded;  ///< what was chosen and why
  std::vector<Variant> variants;
  Variant chosen;
  std::string verdict;
};

Comparison compare(RunConfig& config, LoadedModel& model, Target& target) {
  const bool sparse = model.decoder().config().num_moe_layers() > 0;
  const std::string experts = choose_experts_device(config, target), offloaded = choose_offloaded(config, target);
  std::vector<Variant> variants = variants_of(config, sparse, target);
  Variant chosen = configured(config, target);
  std::string verdict = advice(variants, chosen, experts_fit(model.store(), int8_format()), sparse, target);
  return {experts, offloaded, std::move(variants), std::move(chosen), std::move(verdict)};
}

}  // namespace

std::string why_nothing_fits(const std::string& model) {
  try {
    EstimateOptions options;
    options.target = model;
    options.overrides = {"finetuning_type=lora"};
    RunConfig config = read_run(options);
    const ModelSource source = find_model(model);
    const auto planned = planned_model(source, config.model.dtype);
    if (!config.data.max_length) config.data.max_length = default_max_length(planned->decoder().config());
    Target target(device_to_plan_for(config.machine.device), 0, 0);
    const std::string verdict = compare(config, *planned, target).verdict;
    return target.known && verdict.starts_with(kNothingFits) ? verdict : "";
  } catch (const UserError& error) {
    return error.message();
  }
}

int run_estimate(const EstimateOptions& asked) {
  std::optional<GpuModel> gpu;
  if (!asked.gpu.empty()) gpu = parse_gpu_model(asked.gpu, "--gpu");
  const EstimateOptions options = gpu ? for_gpu(asked, *gpu) : asked;
  RunConfig config = read_run(options);
  const ModelSource source = find_model(config.model.model_name_or_path);
  const std::vector<std::string> notes = describe_vocabulary(config, source.config, source.directory);
  const auto planned = planned_model(source, config.model.dtype, expert_format_of(config), config.model.vocab_rows);
  LoadedModel& model = *planned;
  const DecoderConfig& decoder = model.decoder().config();
  if (!config.data.max_length) config.data.max_length = default_max_length(decoder);
  Target target(gpu ? kPlannedGpu : device_to_plan_for(config.machine.device), options.memory, options.host_memory);
  target.limit.gpu = gpu;
  const auto [experts, offloaded, variants, chosen, verdict] = compare(config, model, target);
  const DiskNeeds disk = disk_needs_of(config, source);
  if (options.json) {
    Json json = {{"configured", json_of(chosen)},
                 {"variants", Json::array()},
                 {"available", target.known ? Json(target.available(chosen.plan())) : Json(nullptr)},
                 {"host_available", target.host_available() > 0 ? Json(target.host_available()) : Json(nullptr)},
                 {"disk",
                  {{"model", disk.model},
                   {"checkpoint", disk.checkpoint},
                   {"checkpoints_at_once", number_or_null(disk.count)},
                   {"merged", disk.merged},
                   {"total", disk.total()}}},
                 {"verdict", verdict}};
    for (const Variant& variant : variants) json["variants"].push_back(json_of(variant));
    print_text(json.dump(2) + "\n");
    return 0;
  }
  const bool color = Terminal::of(1).color;
  if (const std::string missing = what_is_missing(source); !missing.empty()) print_text(missing + "\n");
  const GroupCount total = total_of(count_groups(model.store(), decoder.moe));
  std::string ranks;
  if (options.ranks > 1) {
    ranks = fmt::format(" on each of {} ranks, zero_stage {}", options.ranks, config.machine.zero_stage);
    if (const int64_t size = config.machine.shard_size; size > 0) ranks += fmt::format(" in groups of {}", size);
    if (const int64_t size = config.machine.expert_parallel_size; size > 1) {
      ranks += fmt::format(", experts spread over {}", size);
    }
  }
  print_text(fmt::format("{}, {} parameters, {} × {} tokens at once{}: {}\n", model.config().architecture(),
                         human_count(static_cast<double>(total.parameters)),
                         config.schedule.per_device_train_batch_size, *config.data.max_length, ranks, chosen.name));
  for (const std::string& note : notes) print_text(note + "\n");
  for (const std::string& line : {experts, offloaded}) {
    if (!line.empty()) print_text(line + "\n");
  }
  print_text(chosen_table(chosen, target, color) + "\n" + variants_table(variants, target, color) + "\n");
  const std::string where = gpu                                       ? gpu_text(*gpu)
                            : is_planned(target.device)               ? "A GPU"
                            : target.device.kind == DeviceKind::kCuda ? device_text(target.device)
                                                                      : "This machine";
  if (target.known) {
    print_text(fmt::format("{}, {}{}. ", where, human_bytes(target.available(chosen.plan())),
                           options.memory > 0 ? "" : " free"));
  }
  print_text(verdict + "\n" + disk_line(disk, config) + lacking_disk(disk, config.report.output_dir) + "\n");
  if (target.device.kind == DeviceKind::kCuda) {
    if (const std::string line = spread_advice(config, decoder); !line.empty()) print_text(line + "\n");
  }
  return 0;
}

}  // namespace hone
