// The scores of one model on a task, and what is reported of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/eval/task_rows.h"
#include "core/text/json_fwd.h"
#include "train/run/evaluation_run.h"

namespace hone {

/// What a model did with a row.
struct TaskRowScore {
  std::string generated = {};              ///< the answer, cut at `until`
  std::optional<std::string> answer = {};  ///< what of it was compared; nothing where the pattern found nothing
  std::vector<double> log_likelihoods = {};
  std::vector<double> values = {};  ///< by the task's metrics
};

using TaskScores = std::vector<TaskRowScore>;  ///< by the task's rows

/// Has the run's model, with the currently attached adapters, answer the rows of a task or score their choices. Ranks
/// divide the rows, and all get the same scores. UserError for a row that does not fit the model's context;
/// Error(kNumbersLost) for likelihoods that are not finite. Collective.
TaskScores score_task(const EvaluationRun& run, const Task& task);

/// The mean of each metric; and of the differences from `base`, row by row.
std::vector<MeanOfRows> means_of(const Task& task, const TaskScores& scores);
std::vector<MeanOfRows> mean_differences(const Task& task, const TaskScores& base, const TaskScores& tuned);

/// {"rows": N, "acc": mean, "acc_stderr": its standard error or null, …}
Json scores_json(const Task& task, const TaskScores& scores);
/// {"acc_points": 100 · the mean difference, "acc_points_stderr": …}
Json differences_json(const Task& task, const TaskScores& base, const TaskScores& tuned);

/// A line of JSON for each row: id, prompt, reference, the answer or the choices, and its metrics. With `base` also the
/// base's, under "base".
std::string predictions_text(const Task& task, const TaskScores& tuned, const TaskScores* base);

}  // namespace hone
