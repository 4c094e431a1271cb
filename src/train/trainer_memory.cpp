// The trainer before its first step: what the run needs in memory, and what is chosen so that it fits.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "report/humanise.h"
#include "session/device_facts.h"
#include "train/memory_rows.h"
#include "train/recompute.h"
#include "train/trainer.h"

namespace hone {

namespace {

/// What is done with activations, for the table.
std::string level_note(const std::string& level) {
  if (level == recompute_levels().front()) return "kept";
  return level == recompute_levels().back() ? "recomputed in backward" : fmt::format("kept, {} recomputed", level);
}

}  // namespace

/// Chooses the level of recomputation; false if no allowed one fits.
bool Trainer::fits(const MemoryLimit& limit, MemoryPlan& plan) {
  const FittingLevel choice =
      choose_level(allowed_levels(config_.model.gradient_checkpointing), limit, [&](const RecomputePolicy& policy) {
        engine_->set_recompute(policy);
        return engine_->plan();
      });
  recompute_level_ = choice.level;
  plan = choice.plan;
  return choice.fits;
}

/// Half the batch on the device and twice the accumulation, so that an optimizer step stays what it is; false if it
/// cannot be halved.
bool Trainer::halve_batch() {
  RunConfig::Schedule& schedule = config_.schedule;
  if (schedule.per_device_train_batch_size % 2 != 0 || config_.optim.optimizer_in_backward) return false;
  schedule.per_device_train_batch_size /= 2;
  schedule.gradient_accumulation_steps *= 2;
  config_.eval.per_device_eval_batch_size =
      std::min(config_.eval.per_device_eval_batch_size, schedule.per_device_train_batch_size);
  make_loader();
  make_engine();
  return true;
}

void Trainer::fit_memory() {
  report_devices();
  model_->store().allocate_dry(stream_.device());
  const MemoryLimit limit = least_memory_limit();
  const int64_t wanted_batch = config_.schedule.per_device_train_batch_size;
  MemoryPlan plan;
  bool fitting = fits(limit, plan);
  while (!fitting && config_.machine.auto_find_batch_size && halve_batch()) fitting = fits(limit, plan);
  report_memory(plan, limit, fitting);
  planned_bytes_ = plan.total();
  if (!fitting) warn_of_unused_gpu();
  if (!fitting) throw does_not_fit("the run", plan, limit, what_fits(limit));
  const RunConfig::Schedule& schedule = config_.schedule;
  if (schedule.per_device_train_batch_size != wanted_batch) {
    logger_.info("per_device_train_batch_size {} and gradient_accumulation_steps {}: {} at once do not fit in memory",
                 schedule.per_device_train_batch_size, schedule.gradient_accumulation_steps, wanted_batch);
  }
  if (config_.model.gradient_checkpointing == "auto" && recompute_level_ != recompute_levels().front()) {
    logger_.info("gradient_checkpointing {}: keeping more of the forward pass would not fit in memory",
                 level_setting(recompute_level_));
  }
}

/// With device: auto, of a GPU that this build has no code for.
void Trainer::warn_of_unused_gpu() {
  if (config_.machine.device != "auto" || stream_.device().kind != DeviceKind::kCpu) return;
  if (const std::string reason = why_no_gpu_is_used(); !reason.empty()) logger_.warning("{}", reason);
}

/// The setting that costs least and makes the run fit, tried with dry passes.
std::string Trainer::what_fits(const MemoryLimit& limit) {
  const auto fits_with = [&](const std::string& level) {
    engine_->set_recompute(recompute_policy(level));
    return limit.fits(engine_->plan());
  };
  for (const std::string& level : recompute_levels()) {
    if (fits_with(level)) return fmt::format("it fits with gradient_checkpointing: {}", level_setting(level));
  }
  while (halve_batch()) {
    if (!fits_with(recompute_levels().back())) continue;
    return fmt::format(
        "it fits with gradient_checkpointing: true, per_device_train_batch_size: {} and gradient_accumulation_steps: "
        "{}, which is the same training",
        config_.schedule.per_device_train_batch_size, config_.schedule.gradient_accumulation_steps);
  }
  if (limit.host) {
    for (const std::vector<std::string>& names : further_offloads(config_)) {
      offload(names);
      if (!fits_with(recompute_levels().back())) continue;
      return fmt::format("it fits with cpu_offload: [{}] and gradient_checkpointing: true", fmt::join(names, ", "));
    }
  }
  const bool shards_more = config_.machine.ranks > 1 && config_.machine.zero_stage != "3";
  return fmt::format("{}{}lower max_length; `hone estimate` shows what fits",
                     shards_more ? "share more with zero_stage: 3, " : "",
                     config_.model.finetuning_type == "full" ? "train with finetuning_type: lora, or " : "");
}

/// Plans with something else in host memory.
void Trainer::offload(const std::vector<std::string>& names) {
  config_.machine.cpu_offload = names;
  RankShare share = trainable_options(config_).ranks;
  share.rank = ranks_.rank;
  model_->store().share_among(share);
  model_->store().allocate_dry(stream_.device());
  make_engine();
}

void Trainer::report_memory(const MemoryPlan& plan, const MemoryLimit& limit, bool fits) {
  if (!limit.host && plan.host() > 0) {
    logger_.warning("cpu_offload saves nothing on a CPU: the {} are of the same memory",
                    human_bytes(static_cast<double>(plan.host())));
  }
  const std::vector<MemoryRow> rows = memory_rows(plan, precision_of(config_), level_note(recompute_level_));
  const auto available = static_cast<uint64_t>(std::max<int64_t>(limit.most, 0));
  const std::string table = memory_table(rows, available, logger_.console().color());
  if (const std::string host = host_memory_line(plan, limit.host.value_or(0)); !host.empty()) logger_.info("{}", host);
  if (!fits) return logger_.block(table);
  logger_.detail_block(table);
  logger_.info("{}", memory_line(rows, available));
}

}  // namespace hone
