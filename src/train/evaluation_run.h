// EvaluationRun: a described run whose model is loaded for evaluation and generation, without gradients and optimizer
// state.
#pragma once

#include <optional>

#include "train/planned_run.h"

namespace hone {

struct EvaluationRun {
  RunContext& context;
  DescribedRun described;

  /// Evaluates with the currently attached adapters. Memory other than the model's is freed afterwards.
  LossResult evaluate() const;
};

/// Loads the model and the evaluation data (or, without any, `datasets`), limited to the first `max_samples`. The
/// context must outlive the run. UserError: as describe_run, or an evaluation that does not fit in memory.
EvaluationRun load_evaluation(RunConfig config, RunContext& context, std::optional<int64_t> max_samples);

}  // namespace hone
