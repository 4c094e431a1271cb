#include "train/save/disk_needs.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/humanise.h"
#include "train/save/training_state.h"

namespace hone {

namespace {

int64_t value_bytes(const Parameter& parameter) {
  return parameter.shape().numel() * static_cast<int64_t>(size_of(parameter.value().dtype()));
}

/// How many checkpoints there are at once; unset: all are kept, and their number is not known.
std::optional<int64_t> checkpoints_at_once(const RunConfig& config) {
  std::optional<int64_t> written;
  const std::optional<int64_t> steps = config.schedule.max_steps, each = config.checkpoint.save_steps;
  if (config.checkpoint.save_strategy == Cadence::kSteps && steps && each) written = (*steps + *each - 1) / *each;
  if (!config.checkpoint.save_total_limit) return written;
  const int64_t kept = *config.checkpoint.save_total_limit + 1;  // the oldest goes when the newest is complete
  return std::min(kept, written.value_or(kept));
}

}  // namespace

DiskNeeds disk_needs(const ParameterStore& store, const RunConfig& config) {
  const bool lora = config.model.finetuning_type == FinetuningType::kLora;
  int64_t model = 0, base = 0, state = 0;
  for (const Parameter& parameter : store.all()) {
    const bool of_adapter = parameter.spec().kind == ParameterKind::kLora;
    if (!of_adapter) base += value_bytes(parameter);
    if (lora ? parameter.trainable() : !of_adapter) model += value_bytes(parameter);
  }
  for (const auto& announced : training_state_file(store).announced()) state += announced.bytes();
  DiskNeeds needs;
  needs.model = model * (config.eval.load_best_model_at_end ? 2 : 1);
  needs.count = 0;
  if (config.checkpoint.save_strategy != Cadence::kNo) {
    needs.checkpoint = model + (config.checkpoint.save_only_model ? 0 : state);
    needs.count = checkpoints_at_once(config);
  }
  if (lora && config.checkpoint.merge_after_training) needs.merged = base;
  return needs;
}

std::string disk_line(const DiskNeeds& needs, const RunConfig& config) {
  const bool lora = config.model.finetuning_type == FinetuningType::kLora;
  std::string line = fmt::format("Disk: {} {}{}", lora ? "adapter" : "model", human_bytes(needs.model),
                                 config.eval.load_best_model_at_end ? " with the best weights" : "");
  if (needs.checkpoint > 0) {
    line += fmt::format(
        "; checkpoints {} each{}, {}", human_bytes(needs.checkpoint),
        config.checkpoint.save_only_model ? "" : " with the optimizer's state",
        needs.count ? fmt::format("up to {} at once", *needs.count) : "all of which are kept (save_total_limit)");
  }
  if (needs.merged > 0) line += fmt::format("; merged model {}", human_bytes(needs.merged));
  return line + fmt::format("; {} in all{}.", human_bytes(needs.total()), needs.count ? "" : " without checkpoints");
}

}  // namespace hone
