#include "app/eval/task_scores.h"

#include <fmt/format.h>

#include <cmath>

#include "app/eval/eval_answers.h"
#include "app/inference/inference_model.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

namespace {

double metric_of(TaskMetric metric, const Task& task, const TaskRow& row, const TaskRowScore& score) {
  std::vector<size_t> lengths;
  switch (metric) {
    case TaskMetric::kExactMatch:
      return score.answer && exact_match(*score.answer, row.reference, task.exact) ? 1 : 0;
    case TaskMetric::kRougeL:
      return score.answer ? rouge_l(*score.answer, row.reference) : 0;
    case TaskMetric::kAcc:
      break;
    case TaskMetric::kAccNorm:
      for (const std::string& choice : row.choices) lengths.push_back(character_count(choice));
      break;
    case TaskMetric::kAccBytes:
      for (const std::string& choice : row.choices) lengths.push_back(choice.size());
      break;
  }
  return likeliest(score.log_likelihoods, lengths) == row.right ? 1 : 0;
}

TaskScores score_choices(const EvaluationRun& run, const Task& task) {
  const std::vector<ScoredText> texts = task.all_texts();
  const int64_t context = context_length(run.described.model->decoder().config().rope);
  for (const TaskRow& row : task.rows) {
    for (const ScoredText& text : row.texts) {
      if (static_cast<int64_t>(text.ids.size()) <= context) continue;
      throw UserError(
          fmt::format("the question with a choice has {} tokens, and the model's context {}", text.ids.size(), context),
          row.where, "shorten it, or lower --num-fewshot");
    }
  }
  const std::vector<double> all = run.log_likelihoods(texts);
  for (const double value : all) {
    if (!std::isfinite(value)) throw logits_not_finite();
  }
  TaskScores scores;
  auto next = all.begin();
  for (const TaskRow& row : task.rows) {
    const auto end = next + static_cast<std::ptrdiff_t>(row.texts.size());
    scores.push_back({.log_likelihoods = {next, end}});
    next = end;
  }
  return scores;
}

TaskScores score_answers(const EvaluationRun& run, const Task& task) {
  std::vector<PromptRow> prompts;
  for (const TaskRow& row : task.rows) prompts.push_back(row.prompt);
  TaskScores scores;
  for (std::string& text : answers_of(run, prompts, UsualSampling::kGreedy, task.until)) {
    std::optional<std::string> found = task.answer_in(text);
    scores.push_back({.generated = std::move(text), .answer = std::move(found)});
  }
  return scores;
}

Json stderr_json(const MeanOfRows& mean, double scale) {
  return mean.stderr_of_mean ? Json(scale * *mean.stderr_of_mean) : Json();
}

void add_score(Json& json, const Task& task, const TaskRowScore& score) {
  if (task.of_choices) {
    json["choice"] = likeliest(score.log_likelihoods);
    json["log_likelihoods"] = score.log_likelihoods;
  } else {
    json["generated_text"] = score.generated;
    json["answer"] = score.answer ? Json(*score.answer) : Json();
  }
  for (size_t i = 0; i < task.metrics.size(); ++i) json[std::string(name_of(task.metrics[i]))] = score.values[i];
}

}  // namespace

TaskScores score_task(const EvaluationRun& run, const Task& task) {
  TaskScores scores = task.of_choices ? score_choices(run, task) : score_answers(run, task);
  for (size_t i = 0; i < scores.size(); ++i) {
    for (const TaskMetric metric : task.metrics) {
      scores[i].values.push_back(metric_of(metric, task, task.rows[i], scores[i]));
    }
  }
  return scores;
}

std::vector<MeanOfRows> means_of(const Task& task, const TaskScores& scores) {
  std::vector<MeanOfRows> means;
  for (size_t metric = 0; metric < task.metrics.size(); ++metric) {
    std::vector<double> values;
    for (const TaskRowScore& row : scores) values.push_back(row.values[metric]);
    means.push_back(mean_of(values));
  }
  return means;
}

std::vector<MeanOfRows> mean_differences(const Task& task, const TaskScores& base, const TaskScores& tuned) {
  HONE_ASSERT(base.size() == tuned.size());
  TaskScores differences = tuned;
  for (size_t row = 0; row < base.size(); ++row) {
    for (size_t i = 0; i < task.metrics.size(); ++i) differences[row].values[i] -= base[row].values[i];
  }
  return means_of(task, differences);
}

Json scores_json(const Task& task, const TaskScores& scores) {
  Json json = {{"rows", scores.size()}};
  const std::vector<MeanOfRows> means = means_of(task, scores);
  for (size_t i = 0; i < means.size(); ++i) {
    const std::string name(name_of(task.metrics[i]));
    json[name] = means[i].mean;
    json[name + "_stderr"] = stderr_json(means[i], 1);
  }
  return json;
}

Json differences_json(const Task& task, const TaskScores& base, const TaskScores& tuned) {
  Json json = Json::object();
  const std::vector<MeanOfRows> means = mean_differences(task, base, tuned);
  for (size_t i = 0; i < means.size(); ++i) {
    const std::string name(name_of(task.metrics[i]));
    json[name + "_points"] = 100 * means[i].mean;
    json[name + "_points_stderr"] = stderr_json(means[i], 100);
  }
  return json;
}

std::string predictions_text(const Task& task, const TaskScores& tuned, const TaskScores* base) {
  std::string text;
  for (size_t i = 0; i < task.rows.size(); ++i) {
    const TaskRow& row = task.rows[i];
    Json json = {{"id", row.id}, {"prompt", row.asked}};
    if (task.of_choices) {
      json["choices"] = row.choices;
      json["reference"] = row.right;
    } else {
      json["reference"] = row.reference;
    }
    add_score(json, task, tuned[i]);
    if (base != nullptr) add_score(json["base"], task, (*base)[i]);
    text += json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return text;
}

}  // namespace hone
