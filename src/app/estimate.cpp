#include "app/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "app/model_summary.h"
#include "app/output.h"
#include "app/resolve.h"
#include "core/error.h"
#include "report/humanise.h"
#include "report/startup_tables.h"
#include "report/table.h"
#include "report/terminal.h"
#include "train/host_memory.h"
#include "train/run_options.h"

namespace hone {

namespace {

/// Documents of a packed micro-batch are rarely shorter on average; their number hardly matters.
constexpr int64_t kShortDocument = 32;
constexpr int64_t kShortestLength = 128;

/// A run that could be made instead.
struct Variant {
  std::string name;
  RunConfig config;
  bool checkpointing = false;
  MemoryPlan plan;
};

std::string bytes_text(int64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

bool is_config(const std::string& target) {
  const std::string extension = std::filesystem::path(target).extension().string();
  return !std::filesystem::is_directory(target) &&
         (extension == ".yaml" || extension == ".yml" || extension == ".json" || std::filesystem::exists(target));
}

RunConfig read_run(const EstimateOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  const bool file = is_config(options.target);
  if (!file) overrides.insert(overrides.begin(), "model_name_or_path=" + Json(options.target).dump());
  const ResolvedConfig config = load_config(file ? options.target : "", overrides);
  require_keys(config, {"model_name_or_path"});
  return config.run;
}

RunConfig as_full(RunConfig config) {
  if (config.model.finetuning_type == "full") return config;
  config.model.finetuning_type = "full";
  config.model.adapter_name_or_path.clear();
  config.model.freeze_router = false;
  return config;
}

RunConfig as_lora(RunConfig config, bool sparse) {
  if (config.model.finetuning_type == "lora") return config;
  config.model.finetuning_type = "lora";
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
  return fmt::format("LoRA r {}{}", config.lora.r.value_or(16), targets.empty() ? "" : " on " + targets);
}

/// Full fine-tuning and LoRA, each with and without checkpointing.
std::vector<Variant> variants_of(const RunConfig& config, bool sparse, Stream& stream) {
  const RunConfig full = as_full(config), lora = as_lora(config, sparse);
  std::vector<Variant> variants = {{"full", full, false, {}},
                                   {"full, gradient checkpointing", full, true, {}},
                                   {lora_name(lora), lora, false, {}},
                                   {lora_name(lora) + ", gradient checkpointing", lora, true, {}}};
  for (Variant& variant : variants) variant.plan = plan_memory(variant.config, variant.checkpointing, stream);
  return variants;
}

/// The variant that training would run: with gradient_checkpointing auto, the one that fits.
const Variant& configured(const std::vector<Variant>& variants, const RunConfig& config, int64_t available) {
  const size_t plain = config.model.finetuning_type == "full" ? 0 : 2;
  const std::string& wanted = config.model.gradient_checkpointing;
  // The same margin as in training.
  const bool tight = variants[plain].plan.total() > available * 9 / 10;
  return variants[plain + (wanted == "true" || (wanted == "auto" && tight) ? 1 : 0)];
}

/// The longest max_length, by halving, with which the run fits; none if not even a short one does.
std::optional<int64_t> length_that_fits(RunConfig config, int64_t available, Stream& stream) {
  config.schedule.per_device_train_batch_size = 1;
  for (int64_t length = *config.data.max_length; length >= kShortestLength; length /= 2) {
    config.data.max_length = length;
    if (plan_memory(config, true, stream).total() <= available) return length;
  }
  return std::nullopt;
}

/// What makes the run fit, in the order of what it costs.
std::string advice(const std::vector<Variant>& variants, const Variant& chosen, int64_t available, Stream& stream) {
  if (chosen.plan.total() <= available) return "It fits.";
  const size_t same = chosen.config.model.finetuning_type == "full" ? 1 : 3;
  if (variants[same].plan.total() <= available) return "It fits with gradient_checkpointing: true.";
  const int64_t length = *chosen.config.data.max_length;
  if (const auto shorter = length_that_fits(chosen.config, available, stream)) {
    if (*shorter == length) {
      return "It fits with per_device_train_batch_size: 1 and gradient_checkpointing: true (global_batch_size keeps "
             "the "
             "step as large).";
    }
    return fmt::format("It fits with max_length: {}, per_device_train_batch_size: 1 and gradient_checkpointing: true.",
                       *shorter);
  }
  if (variants[3].plan.total() <= available)
    return "It fits with finetuning_type: lora and gradient_checkpointing: true.";
  if (const auto shorter = length_that_fits(variants[3].config, available, stream)) {
    return fmt::format(
        "It fits with finetuning_type: lora, max_length: {}, per_device_train_batch_size: 1 and "
        "gradient_checkpointing: true.",
        *shorter);
  }
  return fmt::format("No setting makes it fit: LoRA with gradient checkpointing needs {}, the weights alone {}.",
                     bytes_text(variants[3].plan.total()), bytes_text(variants[3].plan.parameters.weights));
}

std::string variants_table(const std::vector<Variant>& variants, int64_t available, bool color) {
  Table table({{"method"},
               {"weights", Align::kRight},
               {"master", Align::kRight},
               {"gradients", Align::kRight},
               {"optimizer", Align::kRight},
               {"activations", Align::kRight},
               {"total", Align::kRight},
               {""}});
  for (const Variant& variant : variants) {
    const ParameterBytes& bytes = variant.plan.parameters;
    table.add_row({variant.name, bytes_text(bytes.weights), bytes_text(bytes.master), bytes_text(bytes.gradients),
                   bytes_text(bytes.moments), bytes_text(variant.plan.activations + variant.plan.batch),
                   bytes_text(variant.plan.total()), variant.plan.total() <= available ? "fits" : "too large"});
  }
  return table.to_string(color);
}

std::string chosen_table(const Variant& chosen, int64_t available, bool color) {
  const ParameterBytes& bytes = chosen.plan.parameters;
  const std::vector<MemoryRow> rows = {
      {"weights", static_cast<uint64_t>(bytes.weights), std::string(name_of(dtype_of(chosen.config)))},
      {"master weights", static_cast<uint64_t>(bytes.master), "float32"},
      {"gradients", static_cast<uint64_t>(bytes.gradients), "float32"},
      {"optimizer", static_cast<uint64_t>(bytes.moments), "AdamW, float32 moments"},
      {"activations", static_cast<uint64_t>(chosen.plan.activations),
       chosen.checkpointing ? "recomputed in backward" : "kept"},
      {"batch", static_cast<uint64_t>(chosen.plan.batch), ""}};
  return memory_table(rows, static_cast<uint64_t>(available), color);
}

Json json_of(const Variant& variant) {
  const ParameterBytes& bytes = variant.plan.parameters;
  return {{"name", variant.name},         {"weights", bytes.weights},     {"master", bytes.master},
          {"gradients", bytes.gradients}, {"optimizer", bytes.moments},   {"activations", variant.plan.activations},
          {"batch", variant.plan.batch},  {"total", variant.plan.total()}};
}

}  // namespace

MemoryPlan plan_memory(const RunConfig& config, bool checkpointing, Stream& stream) {
  LoadedModel model(resolve_model_path(config.model.model_name_or_path), dtype_of(config));
  model.set_trainable(trainable_options(config));
  model.store().allocate_dry();
  const DecoderConfig& decoder = model.decoder().config();
  const int64_t batch = config.schedule.per_device_train_batch_size, length = config.data.max_length.value();
  // Rows of experts are numbered with 32 bits.
  if (length > std::numeric_limits<int32_t>::max() / batch / std::max<int64_t>(1, decoder.moe.num_experts_per_tok)) {
    throw UserError(fmt::format("{} × {} tokens at once are more than a micro-batch can be", batch, length),
                    "per_device_train_batch_size, max_length",
                    "accumulate gradients instead: gradient_accumulation_steps");
  }
  EngineOptions options;
  options.capacity = {.max_tokens = batch * length,
                      .max_documents = config.data.packing ? batch * length / kShortDocument + 1 : batch,
                      .max_supervised = batch * length,
                      .max_seqlen = length};
  options.recompute.everything = checkpointing;
  options.optimizer = optimizer_options(config);
  options.router_aux_loss_coef = aux_loss_coefficient(config, decoder);
  model.decoder().prepare(stream, length);
  return Engine(model.decoder(), model.store(), stream, options).plan();
}

int run_estimate(const EstimateOptions& options) {
  RunConfig config = read_run(options);
  LoadedModel model(resolve_model_path(config.model.model_name_or_path), dtype_of(config));
  const DecoderConfig& decoder = model.decoder().config();
  if (!config.data.max_length) config.data.max_length = std::min<int64_t>(decoder.rope.max_position_embeddings, 4096);
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  const auto available = static_cast<int64_t>(available_host_memory());
  const std::vector<Variant> variants = variants_of(config, decoder.num_moe_layers() > 0, stream);
  const Variant& chosen = configured(variants, config, available);
  const std::string verdict = advice(variants, chosen, available, stream);
  if (options.json) {
    Json json = {
        {"configured", json_of(chosen)}, {"variants", Json::array()}, {"available", available}, {"verdict", verdict}};
    for (const Variant& variant : variants) json["variants"].push_back(json_of(variant));
    print_text(json.dump(2) + "\n");
    return 0;
  }
  const bool color = Terminal::of(1).color;
  const GroupCount total = total_of(count_groups(model.store(), decoder.moe));
  print_text(fmt::format("{}, {} parameters, {} × {} tokens at once: {}\n", model.config().architecture(),
                         human_count(static_cast<double>(total.parameters)),
                         config.schedule.per_device_train_batch_size, *config.data.max_length, chosen.name));
  print_text(chosen_table(chosen, available, color) + "\n" + variants_table(variants, available, color) + "\n");
  print_text(fmt::format("This machine has {} free. {}\n", bytes_text(available), verdict));
  return 0;
}

}  // namespace hone
