// EvaluationRun: a described run whose model is loaded for evaluation and generation, without gradients and optimizer
// state.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "train/plan/planned_run.h"
#include "train/plan/scored_texts.h"

namespace hone {

struct EvaluationRun {
  RankGroup& group;
  DescribedRun described;

  RunContext& context() const { return group.context(); }
  /// Evaluates with the currently attached adapters; the ranks' micro-batches are dealt among them. Memory other than
  /// the model's is freed afterwards. Collective.
  LossResult evaluate() const;
  /// The log-likelihood of each text's scored tokens, given those before, with the currently attached adapters: each
  /// text is in a micro-batch of its own rank, so the numbers do not depend on the number of ranks. The capacity of the
  /// run's `scored` must have room for the texts. Collective.
  std::vector<double> log_likelihoods(std::span<const ScoredText> texts) const;
};

/// Describes the model, and the evaluation data (or, without any, `datasets`), limited to the first `max_samples`; or
/// the model and its tokenizer alone, if the configuration has no data. UserError: as describe_run.
DescribedRun describe_evaluation(RunConfig config, RunContext& context, std::optional<int64_t> max_samples);

/// Loads the model for evaluation alone, whose weights ranks and host memory keep as the configuration says. The group
/// must outlive the run. UserError, with what fits, for an evaluation that does not fit in memory. Collective.
EvaluationRun load_evaluation(DescribedRun run, RankGroup& group);

}  // namespace hone
