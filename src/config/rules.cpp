#include "config/rules.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "config/run_options.h"
#include "core/base/contains.h"
#include "core/base/error.h"
#include "params/adapter_kind.h"
#include "params/frozen_weights.h"
#include "session/loaded_model.h"

namespace hone {

namespace {

using MaybeRefusal = std::optional<Refusal>;

bool is_lora(const RunConfig& run) { return run.model.finetuning_type == FinetuningType::kLora; }

/// Frozen experts in the format of 8 bits that a CPU computes with, and that stays whole there.
bool has_int8_experts(const RunConfig& run) { return !expert_format_of(run).movable(); }

/// Whether the device of the run computes the experts, as far as the keys say.
bool experts_on_device(const RunConfig& run) {
  const RunConfig::Machine& machine = run.machine;
  return machine.experts_device == ExpertsOn::kDevice ||
         (machine.experts_device == ExpertsOn::kAuto && machine.device.starts_with("cpu"));
}

Refusal about_experts_device(const RunConfig& run, const std::string& why, std::string instead) {
  return {{"experts_device"},
          fmt::format("experts_device is {}, but {}", run.machine.experts_device, why),
          std::move(instead)};
}

Refusal about_backward(const char* key, const std::string& why, std::string instead) {
  return {{key}, "optimizer_in_backward steps a layer before backward has reached the others: " + why, instead};
}

// The formats of weights.

MaybeRefusal bfloat16_master_of_float32(const RunConfig& run) {
  if (run.model.master_dtype != DType::kBF16 || run.model.dtype != DType::kF32) return {};
  return Refusal{{"master_dtype"},
                 "master_dtype bfloat16 steps the bfloat16 weights themselves, but dtype is float32",
                 "leave master_dtype out: float32 weights need no copy"};
}

MaybeRefusal bfloat16_experts_of_float32(const RunConfig& run) {
  if (!run.model.expert_weight_dtype.bfloat16() || run.model.dtype != DType::kF32) return {};
  return Refusal{{"expert_weight_dtype"},
                 "expert_weight_dtype is bfloat16, but dtype is float32",
                 "leave expert_weight_dtype out, which holds experts in dtype, or write dtype: bfloat16"};
}

MaybeRefusal fp8_of_float32(const RunConfig& run) {
  if (run.model.fp8 == Fp8Recipe::kOff || run.model.dtype != DType::kF32) return {};
  return Refusal{{"fp8"},
                 fmt::format("fp8 is {}, but dtype is float32: 8-bit floats are rounded from bfloat16", run.model.fp8),
                 "leave fp8 out, or write dtype: bfloat16"};
}

MaybeRefusal trained_experts_in_few_bits(const RunConfig& run) {
  if (expert_format_of(run).dense() || is_lora(run)) return {};
  const std::string name(run.model.expert_weight_dtype.name());
  return Refusal{{"expert_weight_dtype"},
                 fmt::format("experts {} are frozen, but finetuning_type is {}",
                             has_int8_experts(run) ? "of 8 bits" : "in " + name, run.model.finetuning_type),
                 "write finetuning_type: lora, which trains adapters beside them, or leave expert_weight_dtype out"};
}

MaybeRefusal int8_experts_on_a_gpu(const RunConfig& run) {
  const bool on_gpu = run.machine.device.starts_with("cuda") && run.machine.experts_device == ExpertsOn::kDevice;
  if (!has_int8_experts(run) || !on_gpu) return {};
  const UserError error = experts_need_cpu("expert_weight_dtype");
  return Refusal{{"expert_weight_dtype"}, error.message(), error.fix()};
}

// Also where all that is packed is frozen: a model is saved whole, and packed weights are not those of the files.
MaybeRefusal trained_base_in_few_bits(const RunConfig& run) {
  const BaseFormat& base = run.model.base_weight_dtype;
  if (base.in_dtype() || is_lora(run)) return {};
  return Refusal{
      {"base_weight_dtype"},
      fmt::format("base_weight_dtype is {}, which is for frozen weights, but finetuning_type is full", base.name()),
      "write finetuning_type: lora, which trains adapters beside them, or leave it out"};
}

// Several ranks.

MaybeRefusal experts_over_undivided_ranks(const RunConfig& run) {
  const int64_t size = run.machine.expert_parallel_size, ranks = run.machine.ranks;
  if (ranks % size == 0) return {};
  return Refusal{{"expert_parallel_size"},
                 fmt::format("experts are spread over {} ranks, which do not divide the {} that {} started", size,
                             ranks == 1 ? "one" : std::to_string(ranks), ranks == 1 ? "was" : "were"),
                 fmt::format("start a multiple of {} ranks: hone launch -n {} -- …; or choose a divisor", size, size)};
}

MaybeRefusal experts_over_undivided_group(const RunConfig& run) {
  const int64_t size = run.machine.expert_parallel_size, group = run.machine.shard_size;
  if (group % size == 0) return {};
  return Refusal{{"expert_parallel_size"},
                 fmt::format("groups of dp_shard_size {} ranks share state, and experts are spread over {} ranks of "
                             "a group",
                             group, size),
                 "choose a divisor of dp_shard_size, or leave that out"};
}

/// A rule of spread experts.
template <class Holds>
MaybeRefusal with_spread_experts(const RunConfig& run, Holds broken, const char* why, const char* instead) {
  if (run.machine.expert_parallel_size == 1 || !broken()) return {};
  return Refusal{{"expert_parallel_size"}, why, instead};
}

MaybeRefusal samples_of_spread_experts(const RunConfig& run) {
  return with_spread_experts(
      run, [&] { return run.generation.generate_samples; },
      "generate_samples with spread experts is known, not in this version",
      "use zero_stage: 3 instead of expert_parallel_size, or leave generate_samples out");
}

MaybeRefusal adafactor_of_spread_experts(const RunConfig& run) {
  return with_spread_experts(
      run, [&] { return run.optim.name == OptimizerName::kAdafactor; },
      "adafactor measures all experts of a layer together, and no rank has them all",
      "use another optimizer, or leave expert_parallel_size out");
}

MaybeRefusal int8_spread_experts(const RunConfig& run) {
  return with_spread_experts(
      run, [&] { return has_int8_experts(run); }, "experts held in 8 bits stay whole on every rank",
      "use base_weight_dtype: int8, which spreads, or leave expert_weight_dtype out");
}

MaybeRefusal offloaded_spread_experts(const RunConfig& run) {
  if (run.machine.expert_parallel_size == 1) return {};
  for (const OffloadPart name : run.machine.cpu_offload) {
    if (name != OffloadPart::kParams && name != OffloadPart::kExperts) continue;
    return Refusal{
        {"expert_parallel_size"},
        fmt::format("cpu_offload: {} brings whole layers from host memory, and experts are spread over ranks", name),
        "leave one of the two out"};
  }
  return {};
}

MaybeRefusal tiles_of_spread_experts(const RunConfig& run) {
  const int64_t tile = run.model.moe_token_tile.value_or(0);
  if (run.machine.expert_parallel_size == 1 || tile == 0) return {};
  return Refusal{
      {"moe_token_tile"},
      fmt::format("moe_token_tile is {}, but with expert_parallel_size tokens already come to the experts in "
                  "rounds",
                  tile),
      "leave it out"};
}

MaybeRefusal ranks_in_backward(const RunConfig& run) {
  if (!run.optim.optimizer_in_backward || run.machine.ranks == 1) return {};
  return Refusal{{"optimizer_in_backward"},
                 "optimizer_in_backward steps a layer before the ranks' gradients of it have been summed",
                 "leave it out, or train with one rank"};
}

MaybeRefusal sharded_adafactor(const RunConfig& run) {
  if (run.machine.ranks == 1 || run.machine.zero_stage == ZeroStage::kNone ||
      run.optim.name != OptimizerName::kAdafactor)
    return {};
  return Refusal{{"zero_stage"},
                 fmt::format("zero_stage {} gives each rank a part of a matrix, and adafactor keeps factors of whole "
                             "ones",
                             run.machine.zero_stage),
                 "use zero_stage: 0, whose factors are small, or another optimizer"};
}

MaybeRefusal sharded_int8_experts(const RunConfig& run) {
  const bool shards = run.machine.ranks > 1 && run.machine.zero_stage == ZeroStage::kValues;
  if (!shards || !has_int8_experts(run) || !experts_on_device(run)) return {};
  return Refusal{{"zero_stage"},
                 "zero_stage 3 shards the weights in dtype, and experts held in 8 bits stay whole on every rank",
                 "use zero_stage: 2, or leave expert_weight_dtype out, or write experts_device: cpu"};
}

/// An adapter that is continued says its kind itself (session/loaded_model.h).
MaybeRefusal sharded_whole_rows(const RunConfig& run) {
  if (run.machine.ranks == 1 || run.machine.zero_stage != ZeroStage::kValues || !is_lora(run)) return {};
  const AdapterKind& kind = adapter_kind(lora_options(run.lora));
  if (kind.reads_whole_rows.empty()) return {};
  const UserError error = rows_are_sharded(kind);
  return Refusal{{"zero_stage"}, error.message(), error.fix()};
}

// Host memory.

MaybeRefusal named_and_chosen_offload(const RunConfig& run) {
  const std::vector<OffloadPart>& names = run.machine.cpu_offload;
  if (names.size() < 2 || !contains(names, OffloadPart::kAuto)) return {};
  return Refusal{
      {"cpu_offload"}, "cpu_offload names parts, and auto, which chooses them", "keep the names, or auto alone"};
}

// auto does not go with cpu_offload at all (auto_and_offload).
MaybeRefusal offloaded_int8_experts(const RunConfig& run) {
  if (run.machine.experts_device != ExpertsOn::kDevice) return {};
  if (!offload_of(run.machine.cpu_offload).values() || !has_int8_experts(run)) return {};
  return Refusal{{"cpu_offload"},
                 "cpu_offload brings weights in dtype or packed to the device, and experts held in 8 bits stay there",
                 "leave params and experts out there, or expert_weight_dtype; without training, experts_device: cpu "
                 "takes both"};
}

MaybeRefusal int8_experts_beside_offload(const RunConfig& run) {
  if (!offload_of(run.machine.cpu_offload).values() || !has_int8_experts(run)) return {};
  return Refusal{{"cpu_offload"},
                 "in training cpu_offload brings weights in dtype or packed, and experts held in 8 bits are neither",
                 "leave params and experts out there, or expert_weight_dtype"};
}

MaybeRefusal offload_of_gathered_weights(const RunConfig& run) {
  if (!offload_of(run.machine.cpu_offload).values() || !gathers_stepped_values(run)) return {};
  return Refusal{{"cpu_offload"},
                 fmt::format("with zero_stage {} each rank hands stepped weights to the others, on the device; "
                             "cpu_offload has them in host memory",
                             run.machine.zero_stage),
                 "use zero_stage: 3"};
}

// Weights in files.

/// A rule of frozen weights that stay in files.
template <class Holds>
MaybeRefusal with_weights_in_files(const RunConfig& run, Holds broken, std::string why, std::string instead) {
  if (run.machine.frozen_weights == FrozenWeights::kMemory || !broken()) return {};
  return Refusal{{"frozen_weights"}, "frozen_weights is file, but " + why, std::move(instead)};
}

// Also where some are frozen: a model is saved whole.
MaybeRefusal trained_weights_in_files(const RunConfig& run) {
  return with_weights_in_files(
      run, [&] { return !is_lora(run); },
      fmt::format("finetuning_type is {}, which saves all weights", run.model.finetuning_type),
      "write finetuning_type: lora, which trains adapters beside them, or leave it out");
}

MaybeRefusal packed_weights_in_files(const RunConfig& run) {
  const BaseFormat& base = run.model.base_weight_dtype;
  return with_weights_in_files(
      run, [&] { return base.packed() != nullptr; },
      fmt::format("base_weight_dtype is {}, into which weights would be packed again at each use", base.name()),
      "leave base_weight_dtype out; or hone export the model in fp8 and use that with base_weight_dtype: auto");
}

MaybeRefusal experts_of_another_format_in_files(const RunConfig& run) {
  return with_weights_in_files(
      run, [&] { return !expert_format_of(run).dense(); },
      fmt::format("expert_weight_dtype is {}, into which experts would be converted again at each use",
                  run.model.expert_weight_dtype.name()),
      "leave expert_weight_dtype out");
}

MaybeRefusal offloaded_weights_in_files(const RunConfig& run) {
  return with_weights_in_files(
      run, [&] { return offload_of(run.machine.cpu_offload).values(); },
      "cpu_offload has the same weights in host memory", "leave params and experts out there, or frozen_weights");
}

MaybeRefusal experts_on_cpu_in_files(const RunConfig& run) {
  return with_weights_in_files(
      run, [&] { return run.machine.experts_device != ExpertsOn::kDevice; },
      fmt::format("experts_device is {}, which keeps experts in host memory", run.machine.experts_device),
      "leave one of the two out; with device: cpu the CPU computes all");
}

/// An adapter that is continued says its kind itself (session/loaded_model.h).
MaybeRefusal whole_rows_in_files(const RunConfig& run) {
  if (run.machine.frozen_weights == FrozenWeights::kMemory || !is_lora(run)) return {};
  const AdapterKind& kind = adapter_kind(lora_options(run.lora));
  if (kind.reads_whole_rows.empty()) return {};
  const UserError error = rows_are_in_files(kind);
  return Refusal{{"frozen_weights"}, error.message(), error.fix()};
}

// Experts on the CPU beside the device.

MaybeRefusal layers_without_cpu(const RunConfig& run) {
  if (!run.machine.cpu_expert_layers || run.machine.experts_device == ExpertsOn::kCpu) return {};
  return about_experts_device(run, fmt::format("cpu_expert_layers is {}", *run.machine.cpu_expert_layers),
                              "write experts_device: cpu beside it; auto chooses the layers itself");
}

MaybeRefusal layers_without_offload(const RunConfig& run) {
  const RunConfig::Machine& machine = run.machine;
  if (!machine.offload_expert_layers || offload_of(machine.cpu_offload).values()) return {};
  return Refusal{{"experts_device"},
                 fmt::format("offload_expert_layers is {}, but cpu_offload names neither experts nor params",
                             *machine.offload_expert_layers),
                 "add experts to cpu_offload; experts_device: auto chooses both"};
}

MaybeRefusal auto_and_offload(const RunConfig& run) {
  if (run.machine.experts_device != ExpertsOn::kAuto || !offload_of(run.machine.cpu_offload).values()) return {};
  return about_experts_device(run, "cpu_offload says already which weights are in host memory",
                              "leave experts and params out there, or write experts_device: cpu or gpu");
}

/// A rule of experts that are not on the device, or for which auto may choose so.
template <class Holds>
MaybeRefusal with_experts_elsewhere(const RunConfig& run, Holds broken, const char* why, const char* instead) {
  if (run.machine.experts_device == ExpertsOn::kDevice || !broken(run.machine)) return {};
  return about_experts_device(run, why, instead);
}

MaybeRefusal spread_experts_on_cpu(const RunConfig& run) {
  return with_experts_elsewhere(
      run, [](const RunConfig::Machine& machine) { return machine.expert_parallel_size > 1; },
      "expert_parallel_size spreads the experts over ranks, and experts on the CPU are whole on each host",
      "leave one of the two out");
}

MaybeRefusal unequal_hosts(const RunConfig& run) {
  return with_experts_elsewhere(
      run, [](const RunConfig::Machine& machine) { return machine.ranks > 1 && machine.ranks_of_host == 0; },
      "the hosts have different numbers of ranks, or not consecutive ones, and the ranks of a host share the experts",
      "start the same number on each host, one after another in the order of ranks");
}

MaybeRefusal experts_on_cpu_in_backward(const RunConfig& run) {
  return with_experts_elsewhere(
      run, [&](const RunConfig::Machine&) { return run.optim.optimizer_in_backward; },
      "optimizer_in_backward steps a layer's experts in backward", "leave one of the two out");
}

MaybeRefusal streamed_experts_on_cpu(const RunConfig& run) {
  return with_experts_elsewhere(
      run,
      [](const RunConfig::Machine& machine) {
        return offload_of(machine.cpu_offload).experts && !machine.cpu_expert_layers;
      },
      "cpu_offload brings experts from host memory to the device",
      "leave experts out there, or experts_device; cpu_expert_layers says for how many layers it means the CPU");
}

MaybeRefusal some_int8_experts_on_cpu(const RunConfig& run) {
  return with_experts_elsewhere(
      run,
      [&](const RunConfig::Machine& machine) { return machine.cpu_expert_layers.has_value() && has_int8_experts(run); },
      "cpu_expert_layers leaves some experts to the device, which does not multiply 8 bits (int8) with a scale a row",
      "leave cpu_expert_layers out, or use expert_weight_dtype: fp8, nf4 or int4");
}

MaybeRefusal graphs_with_experts_on_cpu(const RunConfig& run) {
  return with_experts_elsewhere(
      run, [](const RunConfig::Machine& machine) { return machine.cuda_graphs == GraphUse::kAlways; },
      "a CUDA graph has no work of the CPU", "leave cuda_graphs out, which then is false");
}

// A layer that is stepped in backward cannot use other layers' gradients or further micro-batches.

MaybeRefusal micro_batches_in_backward(const RunConfig& run) {
  const int64_t steps = run.schedule.gradient_accumulation_steps;
  if (!run.optim.optimizer_in_backward || steps == 1) return {};
  Refusal refusal =
      about_backward("gradient_accumulation_steps", fmt::format("it cannot wait for {} micro-batches", steps),
                     "write gradient_accumulation_steps: 1, or leave optimizer_in_backward out");
  refusal.keys.push_back("global_batch_size");
  return refusal;
}

MaybeRefusal clipping_in_backward(const RunConfig& run) {
  if (!run.optim.optimizer_in_backward || run.optim.max_grad_norm == 0) return {};
  return about_backward("max_grad_norm",
                        fmt::format("it cannot clip to a norm of all gradients ({})", run.optim.max_grad_norm),
                        "write max_grad_norm: 0, or leave optimizer_in_backward out");
}

MaybeRefusal skipping_in_backward(const RunConfig& run) {
  if (!run.optim.optimizer_in_backward || run.optim.nan_policy != NanPolicy::kSkip) return {};
  return about_backward("nan_policy", "a step that loses its numbers cannot be skipped as a whole",
                        "write nan_policy: stop, or leave optimizer_in_backward out");
}

constexpr RuleUse kAlways = RuleUse::kAlways, kTraining = RuleUse::kTraining;

constexpr KeyRule kRules[] = {
    {"master_dtype, dtype", kTraining, bfloat16_master_of_float32},
    {"expert_weight_dtype, dtype", kTraining, bfloat16_experts_of_float32},
    {"fp8, dtype", kAlways, fp8_of_float32},
    {"expert_weight_dtype, finetuning_type", kTraining, trained_experts_in_few_bits},
    {"expert_weight_dtype, device", kTraining, int8_experts_on_a_gpu},
    {"base_weight_dtype, finetuning_type", kTraining, trained_base_in_few_bits},
    {"expert_parallel_size, ranks", kAlways, experts_over_undivided_ranks},
    {"expert_parallel_size, dp_shard_size", kAlways, experts_over_undivided_group},
    {"expert_parallel_size, generate_samples", kTraining, samples_of_spread_experts},
    {"expert_parallel_size, optim", kTraining, adafactor_of_spread_experts},
    {"expert_parallel_size, expert_weight_dtype", kAlways, int8_spread_experts},
    {"expert_parallel_size, cpu_offload", kAlways, offloaded_spread_experts},
    {"expert_parallel_size, moe_token_tile", kAlways, tiles_of_spread_experts},
    {"optimizer_in_backward, ranks", kTraining, ranks_in_backward},
    {"zero_stage, optim", kTraining, sharded_adafactor},
    {"zero_stage, expert_weight_dtype", kTraining, sharded_int8_experts},
    {"zero_stage, use_dora", kTraining, sharded_whole_rows},
    {"cpu_offload, auto", kTraining, named_and_chosen_offload},
    {"cpu_offload, expert_weight_dtype", kAlways, offloaded_int8_experts},
    {"cpu_offload, expert_weight_dtype on the CPU", kTraining, int8_experts_beside_offload},
    {"cpu_offload, zero_stage", kTraining, offload_of_gathered_weights},
    {"frozen_weights, finetuning_type", kTraining, trained_weights_in_files},
    {"frozen_weights, base_weight_dtype", kAlways, packed_weights_in_files},
    {"frozen_weights, expert_weight_dtype", kAlways, experts_of_another_format_in_files},
    {"frozen_weights, cpu_offload", kAlways, offloaded_weights_in_files},
    {"frozen_weights, experts_device", kAlways, experts_on_cpu_in_files},
    {"frozen_weights, use_dora", kTraining, whole_rows_in_files},
    {"cpu_expert_layers, experts_device", kAlways, layers_without_cpu},
    {"offload_expert_layers, cpu_offload", kAlways, layers_without_offload},
    {"experts_device, cpu_offload", kAlways, auto_and_offload},
    {"experts_device, expert_parallel_size", kAlways, spread_experts_on_cpu},
    {"experts_device, ranks of hosts", kAlways, unequal_hosts},
    {"experts_device, optimizer_in_backward", kTraining, experts_on_cpu_in_backward},
    {"experts_device, cpu_offload experts", kAlways, streamed_experts_on_cpu},
    {"cpu_expert_layers, expert_weight_dtype", kAlways, some_int8_experts_on_cpu},
    {"experts_device, cuda_graphs", kTraining, graphs_with_experts_on_cpu},
    {"optimizer_in_backward, gradient_accumulation_steps", kTraining, micro_batches_in_backward},
    {"optimizer_in_backward, max_grad_norm", kTraining, clipping_in_backward},
    {"optimizer_in_backward, nan_policy", kTraining, skipping_in_backward},
};

}  // namespace

std::span<const KeyRule> key_rules() { return kRules; }

std::optional<Refusal> find_refusal(const RunConfig& run, RuleUse use) {
  for (const KeyRule& rule : kRules) {
    if (use == RuleUse::kAlways && rule.use == RuleUse::kTraining) continue;
    if (std::optional<Refusal> refusal = rule.check(run)) return refusal;
  }
  return std::nullopt;
}

bool go_together(const RunConfig& run, RuleUse use) { return !find_refusal(run, use); }

}  // namespace hone
