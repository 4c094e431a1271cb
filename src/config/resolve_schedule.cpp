#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/resolve_rules.h"
#include "config/schedule_options.h"
#include "core/base/error.h"

namespace hone {
namespace {

/// Adds notes about keys that only another schedule uses.
void name_what_has_no_effect(ResolvedConfig& config) {
  using enum ScheduleType;
  const LrScheduler name = config.run.schedule.lr_scheduler_type;
  const ScheduleType type = schedule_type_of(name);
  const bool waves = type == kCosine || type == kCosineWithRestarts;
  for (const auto& [key, read] : {std::pair{"num_cycles", waves},
                                  {"power", type == kPolynomial},
                                  {"num_decay_steps", type == kWarmupStableDecay},
                                  {"num_stable_steps", type == kWarmupStableDecay},
                                  {"decay_type", type == kWarmupStableDecay},
                                  {"timescale", type == kInverseSqrt}}) {
    if (!says_something(config, key_spec(key)) || read) continue;
    config.notes.push_back(
        fmt::format("{} has no effect: lr_scheduler_type is {} ({})", key, name, where(config, key)));
  }
}

/// Reads the shape of the decay, which other tools state as its type.
void name_decay(ResolvedConfig& config) {
  RunConfig::Schedule& schedule = config.run.schedule;
  if (schedule.lr_scheduler_type != LrScheduler::kOneMinusSqrt) return;
  schedule.lr_scheduler_type = LrScheduler::kWarmupStableDecay;
  if (config.states("decay_type") && schedule.decay_type != DecayShape::kOneMinusSqrt) {
    throw UserError(fmt::format("lr_scheduler_type is 1-sqrt, but decay_type is {}", schedule.decay_type),
                    where(config, "decay_type"), "write lr_scheduler_type: warmup_stable_decay");
  }
  schedule.decay_type = DecayShape::kOneMinusSqrt;
}

void check_shape(const ResolvedConfig& config) {
  const RunConfig::Schedule& schedule = config.run.schedule;
  const auto fraction = [](double value) { return value != std::floor(value); };
  if (schedule.lr_scheduler_type == LrScheduler::kCosineWithRestarts && fraction(schedule.num_cycles.value_or(1))) {
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
  if (schedule.lr_scheduler_type == LrScheduler::kConstant) {
    if (steps || ratio) {
      throw UserError("lr_scheduler_type constant has no warm-up, but one is stated",
                      where(config, steps ? "warmup_steps" : "warmup_ratio"), "write constant_with_warmup");
    }
    schedule.warmup_steps.reset();
    schedule.warmup_ratio = 0;
  }
  if (schedule.warmup_steps && ratio) schedule.warmup_steps.reset();  // warmup_steps: 0 with a ratio has no meaning
  if (schedule.warmup_steps) schedule.warmup_ratio = 0;
}

void resolve_rate(ResolvedConfig& config) {
  RunConfig::Schedule& schedule = config.run.schedule;
  name_decay(config);
  name_what_has_no_effect(config);
  check_shape(config);
  if (!config.states("learning_rate"))
    schedule.learning_rate = config.run.model.finetuning_type == FinetuningType::kLora ? 1e-4 : 1e-5;
  if (schedule.min_lr && schedule.min_lr_ratio) {
    throw UserError(fmt::format("min_lr ({}) and min_lr_ratio ({}) both state the end of the schedule",
                                where(config, "min_lr"), where(config, "min_lr_ratio")),
                    where(config, "min_lr_ratio"), "keep one of them");
  }
  if (schedule.min_lr && *schedule.min_lr > schedule.learning_rate) {
    throw UserError(fmt::format("min_lr {} is above learning_rate {}", *schedule.min_lr, schedule.learning_rate),
                    where(config, "min_lr"));
  }
  if (schedule.lr_scheduler_type == LrScheduler::kCosineWithMinLr && !schedule.min_lr && !schedule.min_lr_ratio) {
    throw UserError("cosine_with_min_lr needs min_lr or min_lr_ratio", where(config, "lr_scheduler_type"),
                    "state one, or write cosine");
  }
  if (schedule.lr_scheduler_type == LrScheduler::kPolynomial && !schedule.min_lr && !schedule.min_lr_ratio) {
    schedule.min_lr = std::min(1e-7, schedule.learning_rate);  // transformers' lr_end
  }
}

namespace {

struct PerEpochKeys {
  const char *per_epoch, *steps, *ratio, *strategy;
};

/// At most one of the keys may state the interval: a number of steps, times per epoch, or a share of all steps.
void check_one_is_stated(const ResolvedConfig& config, std::initializer_list<const char*> keys) {
  const char* first = nullptr;
  for (const char* key : keys) {
    if (!says_something(config, key_spec(key))) continue;
    if (first) {
      throw UserError(fmt::format("{} and {} both say how often", first, key), where(config, key), "keep one of them");
    }
    first = key;
  }
}

/// Resolves times per epoch: once is at the end of the epoch, more often is a number of steps.
void resolve_per_epoch(const ResolvedConfig& config, const PerEpochKeys& keys, std::optional<int64_t>& per_epoch,
                       Cadence& strategy) {
  check_one_is_stated(config, {keys.steps, keys.ratio, keys.per_epoch});
  if (!per_epoch) return;
  const Cadence meant = *per_epoch == 1 ? Cadence::kEpoch : Cadence::kSteps;
  if (config.states(keys.strategy) && strategy != meant) {
    throw UserError(
        fmt::format("{} {} means {}: {}, but it is {}", keys.per_epoch, *per_epoch, keys.strategy, meant, strategy),
        where(config, keys.per_epoch), "keep one of them");
  }
  strategy = meant;
  if (*per_epoch == 1) per_epoch.reset();
}

void check_early_stopping(ResolvedConfig& config) {
  const RunConfig::Eval& eval = config.run.eval;
  if (eval.early_stopping_patience > 0 && eval.eval_strategy == Cadence::kNo) {
    throw UserError("early_stopping_patience, but nothing is evaluated", where(config, "early_stopping_patience"),
                    "state eval_datasets or val_split");
  }
  if (eval.early_stopping_threshold > 0 && eval.early_stopping_patience == 0) {
    config.notes.push_back(fmt::format("early_stopping_threshold has no effect: early_stopping_patience is 0 ({})",
                                       where(config, "early_stopping_threshold")));
  }
}

/// Checks what is written of the model in addition to its checkpoints.
void check_products(ResolvedConfig& config) {
  const RunConfig& run = config.run;
  const auto note = [&](const char* key, const char* why) {
    config.notes.push_back(fmt::format("{} has no effect: {} ({})", key, why, where(config, key)));
  };
  if (run.checkpoint.merge_after_training && run.model.finetuning_type == FinetuningType::kFull)
    note("merge_after_training", "full fine-tuning has no adapter");
  if (!run.checkpoint.export_dir.empty() && !run.checkpoint.merge_after_training)
    note("export_dir", "merge_after_training is false");
  if (!run.generation.generate_samples && says_something(config, key_spec("num_generation_samples")))
    note("num_generation_samples", "generate_samples is false");
  if (run.generation.generate_samples && run.eval.eval_strategy == Cadence::kNo) {
    throw UserError("generate_samples answers prompts of the evaluation data, but nothing is evaluated",
                    where(config, "generate_samples"), "state eval_datasets or val_split");
  }
}

void check_resume(ResolvedConfig& config) {
  const RunConfig::Checkpoint& checkpoint = config.run.checkpoint;
  if (!checkpoint.resume_from_checkpoint.nothing()) return;
  for (const auto& [key, stated] : {std::pair{"resume_only_model", checkpoint.resume_only_model},
                                    {"ignore_data_skip", checkpoint.ignore_data_skip}}) {
    if (stated)
      config.notes.push_back(fmt::format("{} has no effect: nothing is resumed ({})", key, where(config, key)));
  }
}

}  // namespace

void resolve_evaluation(ResolvedConfig& config) {
  RunConfig::Eval& eval = config.run.eval;
  const RunConfig::Data& data = config.run.data;
  if (data.val_split >= 1 && data.val_split != std::floor(data.val_split)) {
    throw UserError(fmt::format("val_split {} is neither a share below 1 nor a whole number", data.val_split),
                    where(config, "val_split"));
  }
  if (data.val_split > 0 && !data.eval_datasets.empty()) {
    throw UserError("eval_datasets and val_split both say what to evaluate on", where(config, "val_split"),
                    "keep one of them");
  }
  const bool something = data.val_split > 0 || !data.eval_datasets.empty();
  if (!config.states("eval_strategy")) eval.eval_strategy = something ? Cadence::kSteps : Cadence::kNo;
  if (!something && eval.eval_strategy != Cadence::kNo) {
    throw UserError(fmt::format("eval_strategy is {}, but there is nothing to evaluate on", eval.eval_strategy),
                    where(config, "eval_strategy"), "state eval_datasets or val_split");
  }
  resolve_per_epoch(config, {"evals_per_epoch", "eval_steps", "eval_steps_ratio", "eval_strategy"},
                    eval.evals_per_epoch, eval.eval_strategy);
  if ((eval.eval_steps || eval.eval_steps_ratio) && eval.eval_strategy != Cadence::kSteps) {
    config.notes.push_back(fmt::format("eval_steps has no effect: eval_strategy is {} ({})", eval.eval_strategy,
                                       where(config, eval.eval_steps ? "eval_steps" : "eval_steps_ratio")));
  }
  if (eval.eval_on_start && !something) {
    throw UserError("eval_on_start, but there is nothing to evaluate on", where(config, "eval_on_start"),
                    "state eval_datasets or val_split");
  }
  check_early_stopping(config);
  if (!config.states("greater_is_better")) {
    eval.greater_is_better = eval.metric_for_best_model == ModelMetric::kMeanTokenAccuracy;
  }
  if (!config.states("per_device_eval_batch_size")) {
    eval.per_device_eval_batch_size = config.run.schedule.per_device_train_batch_size;
  }
}

void resolve_checkpoints(ResolvedConfig& config) {
  RunConfig::Checkpoint& checkpoint = config.run.checkpoint;
  resolve_per_epoch(config, {"saves_per_epoch", "save_steps", "save_steps_ratio", "save_strategy"},
                    checkpoint.saves_per_epoch, checkpoint.save_strategy);
  check_one_is_stated(config, {"logging_steps", "logging_steps_ratio"});
  check_resume(config);
  check_products(config);
  if ((checkpoint.save_steps || checkpoint.save_steps_ratio) && checkpoint.save_strategy != Cadence::kSteps) {
    config.notes.push_back(fmt::format("save_steps has no effect: save_strategy is {} ({})", checkpoint.save_strategy,
                                       where(config, checkpoint.save_steps ? "save_steps" : "save_steps_ratio")));
  }
  const bool evaluates = config.run.eval.eval_strategy != Cadence::kNo;
  if (checkpoint.save_strategy == Cadence::kBest && !evaluates) {
    throw UserError("save_strategy is best, but nothing is evaluated", where(config, "save_strategy"),
                    "state eval_datasets or val_split, or write save_strategy: steps");
  }
  if (!config.run.eval.load_best_model_at_end) return;
  if (evaluates && checkpoint.save_strategy != Cadence::kNo) return;
  throw UserError(fmt::format("load_best_model_at_end, but {} is no", evaluates ? "save_strategy" : "eval_strategy"),
                  where(config, "load_best_model_at_end"),
                  evaluates ? "state save_strategy: steps, epoch or best" : "state eval_datasets or val_split");
}

}  // namespace hone
