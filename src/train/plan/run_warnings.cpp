#include "train/plan/run_warnings.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/run_options.h"
#include "report/humanise.h"

namespace hone {

namespace {

/// Below this a run mostly ends before it has learnt anything: warm-up alone takes some steps, and Adam's second moment
/// is a mean of very few gradients.
constexpr int64_t kFewSteps = 20;

std::string decay_warning(const DescribedRun& run) {
  const OptimizerOptions optimizer = optimizer_options(run.config);
  const double rate = optimizer.rate(run.schedule.learning_rate, 0);
  double most = 0, of_group = rate;
  for (const OptimizerGroup& group : optimizer.groups) {
    const double share = rate * group.rate_factor * group.weight_decay;
    if (share <= most) continue;
    most = share;
    of_group = rate * group.rate_factor;
  }
  if (most < 1) return "";
  return fmt::format(
      "weight_decay {} × learning rate {} is {}: each step takes that share of a weight away, which leaves nothing of "
      "it; weight_decay is mostly 0.1 or less",
      short_number(run.config.optim.weight_decay), short_number(of_group), short_number(most));
}

std::string floor_warning(const DescribedRun& run) {
  const Schedule& schedule = run.schedule;
  const bool falls = schedule.type != ScheduleType::kConstant && schedule.type != ScheduleType::kInverseSqrt;
  if (!falls || !(schedule.min_lr > 0) || schedule.min_lr < schedule.learning_rate) return "";
  return fmt::format(
      "min_lr {} is the learning rate itself, so {} never falls: lower min_lr, or write lr_scheduler_type: "
      "constant_with_warmup",
      short_number(schedule.min_lr), run.config.schedule.lr_scheduler_type);
}

std::string steps_warning(const DescribedRun& run) {
  const int64_t steps = run.schedule.total_steps;
  if (steps >= kFewSteps) return "";
  return fmt::format(
      "the run has {} optimizer step{}, too few for a model to learn much: raise {}, or lower global_batch_size ({})",
      steps, steps == 1 ? "" : "s", run.config.schedule.max_steps ? "max_steps" : "num_train_epochs",
      run.config.schedule.global_batch_size);
}

std::string epoch_warning(const DescribedRun& run) {
  if (run.loader->steps_in_epoch(0) > 1) return "";
  return fmt::format(
      "each step reads the whole data set ({} samples): lower global_batch_size ({}){}, so that an epoch has many "
      "steps",
      with_commas(run.data().train.size()), run.config.schedule.global_batch_size,
      run.config.data.packing
          ? fmt::format(" or max_length ({}), up to which samples are packed", *run.config.data.max_length)
          : "");
}

}  // namespace

std::vector<std::string> doubtful_settings(const DescribedRun& run) {
  std::vector<std::string> warnings = {decay_warning(run), floor_warning(run), steps_warning(run), epoch_warning(run)};
  std::erase(warnings, "");
  return warnings;
}

}  // namespace hone
