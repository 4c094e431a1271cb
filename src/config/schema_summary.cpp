#include "config/schema_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <string_view>
#include <vector>

#include "config/inline_code.h"
#include "config/schema.h"
#include "core/base/error.h"
#include "core/cpu/cpu_features.h"
#include "core/cuda/gpu_models.h"

namespace hone {
namespace {

/// The name of a key, which must be one that does something.
std::string working_key(std::string_view name) {
  HONE_ASSERT(key_spec(name).status == KeyStatus::kSupported, name);
  return in_code(name);
}

/// A key with the values that it takes: "`optim`: `adamw`, `sgd`".
std::string key_with_choices(std::string_view name) {
  return fmt::format("{}: {}", working_key(name), list_in_code(key_spec(name).choices));
}

std::string methods_cell() {
  return fmt::format(
      "full fine-tuning and LoRA ({}); adapters on attention, MLPs, experts, routers, any linear weight ({}, {}), with "
      "{}, {}, {}, {}; beside a base in `dtype` or, as QLoRA has it, packed ({}); trained or frozen by pattern ({}, "
      "{}, {}); {}; {}, {}; moments ({}, {})",
      key_with_choices("finetuning_type"), working_key("lora_target_modules"), working_key("lora_target_parameters"),
      working_key("use_rslora"), working_key("use_dora"), working_key("loraplus_lr_ratio"), working_key("lora_dropout"),
      key_with_choices("base_weight_dtype"), working_key("freeze_parameters"), working_key("trainable_parameters"),
      working_key("freeze_router"), key_with_choices("optim"), key_with_choices("master_dtype"),
      key_with_choices("grad_dtype"), working_key("opt_m_dtype"), key_with_choices("opt_v_dtype"));
}

std::string machines_cell() {
  std::vector<std::string> isas;
  for (const Isa isa : kIsas) isas.emplace_back(name_of(isa));
  return fmt::format(
      "{}; NVIDIA GPUs of compute capability 8.0 on, with CUDA 13 (`hone estimate --gpu` plans for {} of them); x86-64 "
      "CPUs, with kernels for {}",
      key_with_choices("device"), gpu_model_options().size(), list_in_code(isas));
}

std::string ranks_cell() {
  return fmt::format("data parallelism; {}, over all ranks or {} of them; {}; {}", key_with_choices("zero_stage"),
                     working_key("dp_shard_size"), working_key("expert_parallel_size"),
                     key_with_choices("weight_fetch"));
}

std::string host_memory_cell() {
  return fmt::format("{}; {}, of some layers with {} and {}; {}", key_with_choices("cpu_offload"),
                     key_with_choices("experts_device"), working_key("cpu_expert_layers"),
                     working_key("offload_expert_layers"), key_with_choices("frozen_weights"));
}

/// A sentence within a list: without its period, the first letter small.
std::string as_phrase(std::string text) {
  if (text.ends_with('.')) text.pop_back();
  const bool name = text.size() > 1 && std::isupper(static_cast<unsigned char>(text[1]));
  if (!name) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

/// What is refused and has no other spelling: a key or a value with a hint has one.
std::string missing_cell() {
  std::vector<std::string> items;
  for (const KeySpec& key : schema()) {
    if (key.status != KeyStatus::kLater || !key.instead.empty()) continue;
    items.push_back(fmt::format("{} ({})", as_phrase(key.help), in_code(key.name)));
  }
  for (const KeySpec& key : schema()) {
    if (key.status != KeyStatus::kSupported || key.later_choices.empty() || !key.instead.empty()) continue;
    items.push_back(fmt::format("{} {}", in_code(key.name), list_in_code(key.later_choices)));
  }
  return fmt::format("{}", fmt::join(items, "; "));
}

}  // namespace

std::string schema_summary() {
  std::string text;
  const auto add = [&](std::string_view name, const std::string& cell) {
    text += fmt::format("| {} | {} |\n", name, cell);
  };
  add("Methods", methods_cell());
  add("Machines", machines_cell());
  add("Several ranks", ranks_cell());
  add("Host memory", host_memory_cell());
  add("Not in this version", missing_cell());
  return text;
}

}  // namespace hone
