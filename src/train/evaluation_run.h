// EvaluationRun: a described run whose model is loaded to be evaluated and to generate, without gradients and optimizer
// state.
#pragma once

#include <optional>

#include "train/planned_run.h"

namespace hone {

struct EvaluationRun {
  RunContext& context;
  DescribedRun described;

  /// With the adapters that are attached now. What it needs besides the model is free again afterwards.
  LossResult evaluate() const;
};

/// Loads the model and the data's eval part (or, without one, `datasets`), or its first `max_samples`. The context
/// outlives the run. UserError: what describing refuses, or an evaluation that does not fit in memory.
EvaluationRun load_evaluation(RunConfig config, RunContext& context, std::optional<int64_t> max_samples);

}  // namespace hone
