#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/config/resolve_rules.h"
#include "core/error.h"

namespace hone {
namespace {

/// What only one shape reads.
void name_what_has_no_effect(ResolvedConfig& config) {
  const std::string& type = config.run.schedule.lr_scheduler_type;
  for (const auto& [key, read_by] : {std::pair{"num_cycles", "cosine"},
                                     {"power", "polynomial"},
                                     {"num_decay_steps", "warmup_stable_decay"},
                                     {"num_stable_steps", "warmup_stable_decay"},
                                     {"decay_type", "warmup_stable_decay"},
                                     {"timescale", "inverse_sqrt"}}) {
    if (!says_something(config, key_spec(key)) || type.starts_with(read_by)) continue;
    config.notes.push_back(
        fmt::format("{} has no effect: lr_scheduler_type is {} ({})", key, type, where(config, key)));
  }
}

/// The decay that other tools write as the type.
void name_decay(ResolvedConfig& config) {
  RunConfig::Schedule& schedule = config.run.schedule;
  if (schedule.lr_scheduler_type != "1-sqrt") return;
  schedule.lr_scheduler_type = "warmup_stable_decay";
  if (config.states("decay_type") && schedule.decay_type != "1-sqrt") {
    throw UserError(fmt::format("lr_scheduler_type is 1-sqrt, but decay_type is {}", schedule.decay_type),
                    where(config, "decay_type"), "write lr_scheduler_type: warmup_stable_decay");
  }
  schedule.decay_type = "1-sqrt";
}

void check_shape(const ResolvedConfig& config) {
  const RunConfig::Schedule& schedule = config.run.schedule;
  const auto fraction = [](double value) { return value != std::floor(value); };
  if (schedule.lr_scheduler_type == "cosine_with_restarts" && fraction(schedule.num_cycles.value_or(1))) {
    throw UserError(fmt::format("cosine_with_restarts falls a whole number of times, not {}", *schedule.num_cycles),
                    where(config, "num_cycles"));
  }
  if (schedule.num_decay_steps > 1 && fraction(schedule.num_decay_steps)) {
    throw UserError(
        fmt::format("num_decay_steps {} is neither a share below 1 nor a whole number", schedule.num_decay_steps),
        where(config, "num_decay_steps"));
  }
}

}  // namespace

void resolve_warmup(ResolvedConfig& config) {
  RunConfig::Schedule& schedule = config.run.schedule;
  const bool steps = schedule.warmup_steps.value_or(0) > 0;
  const bool ratio = config.states("warmup_ratio") && schedule.warmup_ratio > 0;
  if (steps && ratio) {
    throw UserError(
        fmt::format("warmup_steps {} ({}) and warmup_ratio {} ({}) both state the warm-up", *schedule.warmup_steps,
                    where(config, "warmup_steps"), schedule.warmup_ratio, where(config, "warmup_ratio")),
        where(config, "warmup_ratio"), "keep one of them");
  }
  if (schedule.lr_scheduler_type == "constant") {
    if (steps || ratio) {
      throw UserError("lr_scheduler_type constant has no warm-up, but one is stated",
                      where(config, steps ? "warmup_steps" : "warmup_ratio"), "write constant_with_warmup");
    }
    schedule.warmup_steps.reset();
    schedule.warmup_ratio = 0;
  }
  if (schedule.warmup_steps && ratio) schedule.warmup_steps.reset();  // warmup_steps: 0 beside a ratio says nothing
  if (schedule.warmup_steps) schedule.warmup_ratio = 0;
}

void resolve_rate(ResolvedConfig& config) {
  RunConfig::Schedule& schedule = config.run.schedule;
  name_decay(config);
  name_what_has_no_effect(config);
  check_shape(config);
  if (!config.states("learning_rate"))
    schedule.learning_rate = config.run.model.finetuning_type == "lora" ? 1e-4 : 1e-5;
  if (schedule.min_lr && schedule.min_lr_ratio) {
    throw UserError(fmt::format("min_lr ({}) and min_lr_ratio ({}) both state the end of the schedule",
                                where(config, "min_lr"), where(config, "min_lr_ratio")),
                    where(config, "min_lr_ratio"), "keep one of them");
  }
  if (schedule.min_lr && *schedule.min_lr > schedule.learning_rate) {
    throw UserError(fmt::format("min_lr {} is above learning_rate {}", *schedule.min_lr, schedule.learning_rate),
                    where(config, "min_lr"));
  }
  if (schedule.lr_scheduler_type == "cosine_with_min_lr" && !schedule.min_lr && !schedule.min_lr_ratio) {
    throw UserError("cosine_with_min_lr needs min_lr or min_lr_ratio", where(config, "lr_scheduler_type"),
                    "state one, or write cosine");
  }
  if (schedule.lr_scheduler_type == "polynomial" && !schedule.min_lr && !schedule.min_lr_ratio) {
    schedule.min_lr = std::min(1e-7, schedule.learning_rate);  // transformers' lr_end
  }
}

}  // namespace hone
