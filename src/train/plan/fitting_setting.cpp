#include "train/plan/fitting_setting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "config/rules.h"
#include "config/run_options.h"
#include "train/plan/memory_fit.h"
#include "train/plan/recompute.h"

namespace hone {

bool halve_batch(RunConfig& config) {
  RunConfig::Schedule& schedule = config.schedule;
  if (schedule.per_device_train_batch_size % 2 != 0 || config.optim.optimizer_in_backward) return false;
  schedule.per_device_train_batch_size /= 2;
  schedule.gradient_accumulation_steps *= 2;
  config.eval.per_device_eval_batch_size =
      std::min(config.eval.per_device_eval_batch_size, schedule.per_device_train_batch_size);
  return true;
}

namespace {

const std::string& smallest_level() { return recompute_levels().back(); }

/// A changed configuration, and the change as keys and values.
struct Change {
  RunConfig config;
  std::string text;
};

std::vector<Change> higher_stages(const RunConfig& config) {
  std::vector<Change> changes;
  if (config.machine.ranks == 1) return changes;
  for (const ZeroStage stage : all_choices<ZeroStage>()) {
    if (stage <= config.machine.zero_stage) continue;
    RunConfig changed = config;
    changed.machine.zero_stage = stage;
    changes.push_back({std::move(changed), fmt::format("zero_stage: {}", stage)});
  }
  return changes;
}

/// A key that has modules take tokens in tiles, smaller than those of auto and than a micro-batch.
std::vector<Change> smaller_tiles(const RunConfig& config, const char* key,
                                  std::optional<int64_t> RunConfig::Model::*value, int64_t tile) {
  const int64_t stated = (config.model.*value).value_or(0);
  const int64_t tokens = config.schedule.per_device_train_batch_size * config.data.max_length.value_or(0);
  if (tokens <= tile || (stated > 0 && stated <= tile)) return {};
  Change change{config, fmt::format("{}: {}", key, tile)};
  change.config.model.*value = tile;
  return {change};
}

/// Other values of cpu_offload, with the weights of layers in host memory or without.
std::vector<Change> other_offloads(const RunConfig& config, bool weights) {
  std::vector<Change> changes;
  for (const std::vector<OffloadPart>& names : offload_choices()) {
    if (offload_of(names).values() != weights || names == config.machine.cpu_offload) continue;
    RunConfig changed = config;
    changed.machine.cpu_offload = names;
    changes.push_back({std::move(changed), fmt::format("cpu_offload: [{}]", fmt::join(names, ", "))});
  }
  return changes;
}

/// Frozen weights in fewer bits.
std::vector<Change> smaller_bases(const RunConfig& config, bool int8_experts) {
  std::vector<Change> changes;
  const bool in_dtype = config.model.base_weight_dtype.in_dtype() && expert_format_of(config).dense();
  if (config.model.finetuning_type != FinetuningType::kLora || !in_dtype) return changes;
  if (int8_experts) {
    changes.push_back({config, "expert_weight_dtype: int8"});
    changes.back().config.model.expert_weight_dtype = ExpertFormat(int8_format());
  }
  changes.push_back({config, "base_weight_dtype: nf4"});
  changes.back().config.model.base_weight_dtype = BaseFormat(nf4_format());
  return changes;
}

/// Routed experts on the CPU.
std::vector<Change> experts_elsewhere(const RunConfig& config) {
  if (config.machine.experts_device != ExpertsOn::kDevice || config.machine.offload_expert_layers) return {};
  Change change{config, "experts_device: cpu"};
  change.config.machine.experts_device = ExpertsOn::kCpu;
  return {change};
}

/// Frozen weights in the files of the model.
std::vector<Change> weights_in_files(const RunConfig& config) {
  Change change{config, fmt::format("frozen_weights: {}", FrozenWeights::kFile)};
  change.config.machine.frozen_weights = FrozenWeights::kFile;
  return {change};
}

/// All changes of the configuration but of the batch that go with its other keys, the fastest first.
std::vector<Change> changes_of(const RunConfig& config, const MemoryRoom& room) {
  std::vector<Change> changes;
  const auto add = [&](std::vector<Change> more) {
    for (Change& change : more) changes.push_back(std::move(change));
  };
  if (room.mlps) add(smaller_tiles(config, "mlp_token_tile", &RunConfig::Model::mlp_token_tile, 4096));
  if (room.experts) add(smaller_tiles(config, "moe_token_tile", &RunConfig::Model::moe_token_tile, 8192));
  add(higher_stages(config));
  if (room.host_is_apart) add(other_offloads(config, false));
  add(smaller_bases(config, room.int8_experts));
  if (room.host_is_apart) add(other_offloads(config, true));
  if (room.host_is_apart && room.experts) add(experts_elsewhere(config));
  add(weights_in_files(config));
  std::erase_if(changes, [](const Change& change) { return !go_together(change.config); });
  return changes;
}

/// "A, B and C"
std::string listed(const std::vector<std::string>& parts) {
  const auto most = parts.begin() + static_cast<std::ptrdiff_t>(parts.size()) - 1;
  return parts.size() == 1 ? parts.front()
                           : fmt::format("{} and {}", fmt::join(parts.begin(), most, ", "), parts.back());
}

std::string batch_text(const RunConfig& config) {
  return fmt::format("per_device_train_batch_size: {}", config.schedule.per_device_train_batch_size);
}

std::string accumulation_text(const RunConfig& config) {
  return fmt::format("gradient_accumulation_steps: {}, which is the same training",
                     config.schedule.gradient_accumulation_steps);
}

}  // namespace

std::optional<std::string> fitting_setting(const RunConfig& config, const MemoryRoom& room) {
  const std::string everything = "gradient_checkpointing: true";
  for (const std::string& level : recompute_levels()) {
    if (room.fits(config, level)) return fmt::format("gradient_checkpointing: {}", level_setting(level));
  }
  RunConfig smallest = config;
  while (halve_batch(smallest)) {
    if (!room.fits(smallest, smallest_level())) continue;
    return listed({everything, batch_text(smallest), accumulation_text(smallest)});
  }
  for (const Change& change : changes_of(config, room)) {
    if (room.fits(change.config, recompute_levels().front())) return change.text;
    if (room.fits(change.config, smallest_level())) return listed({change.text, everything});
  }
  if (smallest.schedule.per_device_train_batch_size == config.schedule.per_device_train_batch_size) return std::nullopt;
  for (const Change& change : changes_of(smallest, room)) {
    if (!room.fits(change.config, smallest_level())) continue;
    return listed({change.text, everything, batch_text(smallest), accumulation_text(smallest)});
  }
  return std::nullopt;
}

}  // namespace hone
