// EvaluationRun: a described run whose model is loaded for evaluation and generation, without gradients and optimizer
// state.
#pragma once

#include <optional>

#include "train/plan/planned_run.h"

namespace hone {

struct EvaluationRun {
  RankGroup& group;
  DescribedRun described;

  RunContext& context() const { return group.context(); }
  /// Evaluates with the currently attached adapters; the ranks' micro-batches are dealt among them. Memory other than
  /// the model's is freed afterwards. Collective.
  LossResult evaluate() const;
};

/// Describes the model, and the evaluation data (or, without any, `datasets`), limited to the first `max_samples`.
/// UserError: as describe_run.
DescribedRun describe_evaluation(RunConfig config, RunContext& context, std::optional<int64_t> max_samples);

/// Loads the model for evaluation alone, whose weights ranks and host memory keep as the configuration says. The group
/// must outlive the run. UserError, with what fits, for an evaluation that does not fit in memory. Collective.
EvaluationRun load_evaluation(DescribedRun run, RankGroup& group);

}  // namespace hone
