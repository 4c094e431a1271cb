#include "app/eval/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include "app/eval/eval_answers.h"
#include "app/eval/task_scores.h"
#include "app/inference/generation_prompts.h"
#include "app/launched_ranks.h"
#include "app/output.h"
#include "config/config_reader.h"
#include "config/resolve.h"
#include "config/resolved_yaml.h"
#include "config/run_options.h"
#include "core/text/json.h"
#include "params/without_adapters.h"
#include "report/console.h"
#include "report/humanise.h"
#include "report/table.h"
#include "session/model_path.h"
#include "train/run/evaluation_run.h"
#include "train/save/saved_chat.h"
#include "weights/model_folder.h"

namespace hone {

namespace {

constexpr const char* kResultsName = "evaluation_results.json";

namespace fs = std::filesystem;

/// The results of one model.
struct Measured {
  std::optional<LossResult> loss;    ///< none without evaluation data
  std::vector<std::string> answers;  ///< to the prompts
  TaskScores scores;                 ///< row by row, for a task
};

struct Report {
  Measured tuned;
  std::optional<Measured> base;
  std::vector<std::string> prompts;
  std::optional<Task> task;

  bool finite() const {
    const auto is_finite = [](const Measured& measured) {
      return !measured.loss || std::isfinite(measured.loss->loss);
    };
    return is_finite(tuned) && (!base || is_finite(*base));
  }
};

bool is_adapter(const fs::path& folder) { return fs::exists(folder / "adapter_config.json"); }

/// Overrides that load a checkpoint in place of the configuration's model or adapter.
std::vector<std::string> checkpoint_overrides(const std::string& checkpoint) {
  if (checkpoint.empty()) return {};
  if (!fs::is_directory(checkpoint)) {
    throw UserError("the checkpoint does not exist", checkpoint, "give a folder that `hone train` wrote");
  }
  const std::string path = Json(checkpoint).dump();
  if (!is_adapter(checkpoint)) return {"model_name_or_path=" + path};
  return {"adapter_name_or_path=" + path, "finetuning_type=lora"};
}

/// The configuration of an evaluation by `ranks`. Without `datasets`, the evaluation data take their place; with a task
/// there need be neither.
RunConfig read_evaluation(const RunRequest& request, bool has_task, RanksOfRun ranks, Logger& logger) {
  const ResolvedConfig config = load_config(request.config, request.overrides, ranks);
  for (const std::string& note : config.notes) logger.info("{}", note);
  require_keys(config, {"model_name_or_path"});
  RunConfig run = config.run;
  if (run.data.datasets.empty() && run.data.eval_datasets.empty()) {
    if (has_task) return run;
    throw UserError("the evaluation data are missing", "eval_datasets",
                    "state eval_datasets: test.jsonl, or give a task with --task");
  }
  if (run.data.datasets.empty()) {
    run.data.datasets = std::exchange(run.data.eval_datasets, {});
    run.data.val_split = 0;
  }
  return run;
}

/// Gives chats the settings stored with the evaluated model where the configuration does not state others.
void use_chat_settings(RunConfig& run, const std::string& checkpoint) {
  const std::string& adapter = run.model.adapter_name_or_path;
  const ChatSettings saved = saved_chat_settings(!checkpoint.empty() ? fs::path(checkpoint)
                                                 : !adapter.empty()  ? resolve_adapter_path(adapter)
                                                                    : resolve_model_path(run.model.model_name_or_path));
  Json kwargs = saved.kwargs;
  kwargs.update(run.data.chat_template_kwargs);
  run.data.chat_template_kwargs = kwargs;
  run.data.split_special_tokens = run.data.split_special_tokens || saved.split_special_tokens;
}

/// Makes `base` the model without the adapter of `adapted`, with the tokens that this one has.
void use_vocabulary(RunConfig::Model& base, const RunConfig::Model& adapted) {
  base.adapter_name_or_path.clear();
  base.finetuning_type = FinetuningType::kFull;
  base.tokenizer_name_or_path = adapted.tokenizer_name_or_path;
  base.resize_vocab = adapted.vocab_rows > 0;
}

/// The file that is written; "" if there is none.
std::string output_of(const EvalRequest& request) {
  if (!request.output.empty() || !request.base || request.checkpoint.empty()) return request.output;
  return (fs::path(request.checkpoint) / kResultsName).string();
}

/// Whether a file begins like one that `hone eval` has written.
bool is_evaluation(std::string_view beginning) {
  const auto has = [&](const char* key) { return beginning.find(key) != std::string_view::npos; };
  return beginning.starts_with("{\n") &&
         ((has("\"eval_loss\": ") && has("\"num_supervised_tokens\": ")) || (has("\"task\": {") && has("_stderr\": ")));
}

/// The same for its predictions.
bool are_predictions(std::string_view beginning) {
  const std::string_view line = beginning.substr(0, beginning.find('\n'));
  return line.starts_with("{\"id\":") && line.find("\"reference\":") != std::string_view::npos;
}

class Evaluation {
 public:
  Evaluation(const EvalRequest& request, Logger& logger, LaunchedRanks& launched)
      : request_(request), logger_(logger), launched_(launched), ranks_(launched.for_trainer()) {}

  Report run() {
    RunConfig config = read(with(checkpoint_overrides(request_.checkpoint)));
    launched_.set_timeout(static_cast<double>(config.machine.ddp_timeout));
    use_chat_settings(config, request_.checkpoint);
    if (ranks_.rank == 0) check_output(config);
    const bool adapted = !config.model.adapter_name_or_path.empty();
    if (request_.base && !adapted && request_.checkpoint.empty()) {
      throw UserError("there is nothing to compare the base with", "--base",
                      "name what training wrote with --checkpoint or --adapter");
    }
    RunContext context(config.machine, logger_, {resolved_yaml, {}, {}}, ranks_);
    DescribedRun described = describe_evaluation(config, context, request_.max_samples);
    RankGroup group(context);
    return group.guarded([&] {
      group.check_agreement(described);
      report_.task = task_of(described, group);
      RunConfig::Model vocabulary;
      {
        const EvaluationRun run = load_evaluation(std::move(described), group);
        report_.tuned = measure(run, report_.task);
        if (request_.base && adapted && !holds_whole_weights(run.described.model->store())) {
          const WithoutAdapters off(run.described.model->store());
          report_.base = measure(run, report_.task);
        }
        vocabulary = run.described.config.model;
      }
      if (request_.base && !report_.base) {  // two whole models: one after the other
        RunConfig base = read(request_.run);
        if (adapted) use_vocabulary(base.model, vocabulary);
        base.data.chat_template_kwargs = config.data.chat_template_kwargs;
        base.data.split_special_tokens = config.data.split_special_tokens;
        DescribedRun described_base = describe_evaluation(std::move(base), context, request_.max_samples);
        const std::optional<Task> task = task_of(described_base, group);  // in tokens of this model
        const EvaluationRun run = load_evaluation(std::move(described_base), group);
        report_.base = measure(run, task);
      }
      return report_;
    });
  }

  /// Writes the output files that there are.
  void write(const std::string& json) const {
    if (const std::string& path = request_.task.predictions; !path.empty()) {
      write_output(
          path, predictions_text(*report_.task, report_.tuned.scores, report_.base ? &report_.base->scores : nullptr),
          predictions_rule_);
      logger_.info("predictions: {}", path);
    }
    if (output_.empty()) return;
    write_output(output_, json, rule_);
    logger_.info("results: {}", output_);
  }

 private:
  RunConfig read(const RunRequest& request) const {
    return read_evaluation(request, request_.task.any(), {ranks_.size, ranks_.ranks_of_host}, logger_);
  }

  /// Refuses outputs that would replace a file. They may be in the model's folder.
  void check_output(const RunConfig& config) {
    output_ = output_of(request_);
    if (output_.empty() && request_.task.predictions.empty()) return;
    rule_ = output_rule({{request_.run.config, "the configuration"},
                         {request_.prompts, "the prompts"},
                         {request_.task.file, "the task"},
                         {request_.task.fewshot_file, "the examples"},
                         {config.data.chat_template_file, "the chat template"}},
                        request_.force, is_evaluation);
    for (const auto* sets : {&config.data.datasets, &config.data.eval_datasets}) {
      for (const DatasetConfig& set : *sets) rule_.inputs.add(set.path, "the data set");
    }
    std::vector<std::string> folders = {config.model.model_name_or_path, config.model.adapter_name_or_path,
                                        config.model.tokenizer_name_or_path, request_.checkpoint};
    if (request_.base) {
      const RanksOfRun ranks{ranks_.size, ranks_.ranks_of_host};
      folders.push_back(load_config(request_.run.config, request_.run.overrides, ranks).run.model.model_name_or_path);
    }
    for (const std::string& folder : folders) {
      if (folder.empty()) continue;
      const fs::path path = resolve_model_path(folder, ModelParts::kDescriptions);
      for (const std::string& name : hone_files_in(path)) {
        if (name != kResultsName) rule_.inputs.add(path / name, "the model");
      }
    }
    predictions_rule_ = rule_;
    predictions_rule_.is_earlier = are_predictions;
    if (!request_.task.predictions.empty()) require_output(request_.task.predictions, predictions_rule_);
    if (output_.empty()) return;
    require_output(output_, rule_);
    std::error_code error;
    if (!request_.task.predictions.empty() && std::filesystem::weakly_canonical(output_, error) ==
                                                  std::filesystem::weakly_canonical(request_.task.predictions, error)) {
      throw UserError("the results and the predictions would be one file", "--predictions", "give another name");
    }
  }

  RunRequest with(const std::vector<std::string>& overrides) const {
    RunRequest run = request_.run;
    run.overrides = without_keys_of(run.overrides, overrides);  // --checkpoint has precedence over model=
    run.overrides.insert(run.overrides.end(), overrides.begin(), overrides.end());
    return run;
  }

  /// Reads the task for a described model, and makes room for its texts; none without one.
  std::optional<Task> task_of(DescribedRun& described, RankGroup& group) const {
    if (described.eval_batches.empty()) described.scored = scored_capacity({});
    if (!request_.task.any()) return std::nullopt;
    const Tokenizer& tokenizer = tokenizer_of(described, request_.task.file);
    const ChatPrompt chat = chat_of(described, tokenizer);
    Task task =
        read_task(request_.task, tokenizer, chat, described.config.data.chat_template_kwargs, request_.max_samples);
    if (task.of_choices) described.scored = scored_capacity(task.all_texts());
    if (group.communicator()) group.communicator()->control().check_same("task", task.fingerprint());
    return task;
  }

  Measured measure(const EvaluationRun& run, const std::optional<Task>& task) {
    Measured measured;
    if (!run.described.eval_batches.empty()) measured.loss = run.evaluate();
    if (task) measured.scores = score_task(run, *task);
    if (request_.prompts.empty()) return measured;
    const Tokenizer& tokenizer = tokenizer_of(run.described, request_.prompts);
    const ChatPrompt chat = chat_of(run.described, tokenizer);
    const PromptReader reader(tokenizer, chat,
                              {.system = "",
                               .template_variables = run.described.config.data.chat_template_kwargs,
                               .raw = !chat.has_template()});
    const std::vector<PromptRow> prompts = reader.read_file(request_.prompts);
    measured.answers = answers_of(run, prompts, UsualSampling::kModels);
    report_.prompts.clear();
    for (const PromptRow& prompt : prompts) report_.prompts.push_back(prompt.asked);
    return measured;
  }

  const EvalRequest& request_;
  Logger& logger_;
  LaunchedRanks& launched_;
  TrainerRanks ranks_;
  Report report_;
  std::string output_;  // "": none
  OutputRule rule_, predictions_rule_;
};

Json loss_json(const LossResult& result) {
  return {{"eval_loss", result.loss},
          {"eval_perplexity", std::exp(result.loss)},
          {"eval_mean_token_accuracy", result.mean_token_accuracy},
          {"num_supervised_tokens", result.supervised},
          {"num_tokens", result.tokens}};
}

/// The decrease of the tuned model's value in percent of the base's.
double improvement(double base, double tuned) { return base == 0 ? 0 : 100 * (base - tuned) / base; }

Json measured_json(const Measured& measured, const std::optional<Task>& task) {
  Json json = measured.loss ? loss_json(*measured.loss) : Json::object();
  if (task) json["task"] = scores_json(*task, measured.scores);
  return json;
}

Json report_json(const EvalRequest& request, const Report& report) {
  Json json = measured_json(report.tuned, report.task);
  if (report.base) {
    json = {{"checkpoint", request.checkpoint}, {"base", measured_json(*report.base, report.task)}, {"tuned", json}};
    Json& better = json["improvement"] = Json::object();
    if (report.tuned.loss) {
      const LossResult &base = *report.base->loss, &tuned = *report.tuned.loss;
      better = {{"eval_loss_percent", improvement(base.loss, tuned.loss)},
                {"eval_perplexity_percent", improvement(std::exp(base.loss), std::exp(tuned.loss))},
                {"eval_mean_token_accuracy_points", 100 * (tuned.mean_token_accuracy - base.mean_token_accuracy)}};
    }
    if (report.task) better["task"] = differences_json(*report.task, report.base->scores, report.tuned.scores);
  }
  for (size_t i = 0; i < report.prompts.size(); ++i) {
    Json sample = {{"prompt", report.prompts[i]}};
    if (report.base) sample["base"] = report.base->answers[i];
    sample[report.base ? "tuned" : "generated_text"] = report.tuned.answers[i];
    json["samples"].push_back(std::move(sample));
  }
  return json;
}

std::string perplexity_text(double loss) {
  const double perplexity = std::exp(loss);
  return std::isfinite(perplexity) ? fmt::format("{:.4g}", perplexity) : short_number(perplexity);
}

std::string points_text(double points) {
  return (std::isfinite(points) ? fmt::format("{:+.2f}", points) : short_number(points)) + " points";
}

/// "0.3120 ± 0.0207"
std::string mean_text(const MeanOfRows& mean) {
  return fixed_number(mean.mean, 4) + (mean.stderr_of_mean ? " ± " + fixed_number(*mean.stderr_of_mean, 4) : "");
}

std::string single_table(const Report& report, bool color) {
  Table table({{"evaluation"}, {"", Align::kRight}});
  if (report.tuned.loss) {
    const LossResult& result = *report.tuned.loss;
    table.add_row({"loss", fixed_number(result.loss, 4)});
    table.add_row({"perplexity", perplexity_text(result.loss)});
    table.add_row({"token accuracy", fixed_number(100 * result.mean_token_accuracy, 2) + " %"});
    table.add_row({"supervised tokens", fmt::format("{}", result.supervised)});
    table.add_row({"tokens", fmt::format("{}", result.tokens)});
  }
  if (report.task) {
    const std::vector<MeanOfRows> means = means_of(*report.task, report.tuned.scores);
    for (size_t i = 0; i < means.size(); ++i) {
      table.add_row({std::string(name_of(report.task->metrics[i])), mean_text(means[i])});
    }
    table.add_row({"rows of the task", fmt::format("{}", report.task->rows.size())});
  }
  return table.to_string(color);
}

void add_task_rows(Table& table, const Report& report) {
  const Task& task = *report.task;
  const std::vector<MeanOfRows> base = means_of(task, report.base->scores), tuned = means_of(task, report.tuned.scores);
  const std::vector<MeanOfRows> better = mean_differences(task, report.base->scores, report.tuned.scores);
  for (size_t i = 0; i < base.size(); ++i) {
    std::string difference = points_text(100 * better[i].mean);
    if (better[i].stderr_of_mean) difference += " ± " + fixed_number(100 * *better[i].stderr_of_mean, 2);
    table.add_row({std::string(name_of(task.metrics[i])), mean_text(base[i]), mean_text(tuned[i]), difference});
  }
  const std::string rows = fmt::format("{}", task.rows.size());
  table.add_row({"rows of the task", rows, rows});
}

std::string comparison_table(const Report& report, bool color) {
  Table table({{"evaluation"}, {"base", Align::kRight}, {"tuned", Align::kRight}, {"improvement", Align::kRight}});
  if (report.tuned.loss) {
    const LossResult &base = *report.base->loss, &tuned = *report.tuned.loss;
    const double base_perplexity = std::exp(base.loss), tuned_perplexity = std::exp(tuned.loss);
    table.add_row({"loss", fixed_number(base.loss, 4), fixed_number(tuned.loss, 4),
                   fixed_number(improvement(base.loss, tuned.loss), 1) + " %"});
    table.add_row({"perplexity", perplexity_text(base.loss), perplexity_text(tuned.loss),
                   fixed_number(improvement(base_perplexity, tuned_perplexity), 1) + " %"});
    table.add_row({"token accuracy", fixed_number(100 * base.mean_token_accuracy, 2) + " %",
                   fixed_number(100 * tuned.mean_token_accuracy, 2) + " %",
                   points_text(100 * (tuned.mean_token_accuracy - base.mean_token_accuracy))});
    table.add_row({"supervised tokens", fmt::format("{}", base.supervised), fmt::format("{}", tuned.supervised)});
  }
  if (report.task) add_task_rows(table, report);
  return table.to_string(color);
}

/// A title and the indented lines of a text.
std::string block(const std::string& title, const std::string& text, Style style, bool color) {
  std::string result = "  " + styled(title, style, color) + "\n";
  for (const std::string& line : split_lines(text)) result += "    " + one_line(line) + "\n";
  return result;
}

std::string report_text(const Report& report, bool color) {
  std::string text = report.base ? comparison_table(report, color) : single_table(report, color);
  for (size_t i = 0; i < report.prompts.size(); ++i) {
    text += "\n" + block("prompt", report.prompts[i], Style::kBold, color);
    if (report.base) text += block("base", report.base->answers[i], Style::kDim, color);
    text += block(report.base ? "tuned" : "answer", report.tuned.answers[i], Style::kGreen, color);
  }
  return text;
}

}  // namespace

namespace {

int eval_launched(const EvalRequest& request, LaunchedRanks& launched) {
  const bool first = launched.for_trainer().rank == 0;
  // With --json standard output has only JSON.
  Console console(first && request.json ? Terminal::of(2) : terminal_of(launched.for_trainer()));
  Logger logger(console, request.run.log_level.value_or(LogLevel::kInfo));
  if (launched.size() > 1) logger.info("{}", launched.describe());
  Evaluation evaluation(request, logger, launched);
  const Report report = evaluation.run();
  const int code = report.finite() ? 0 : static_cast<int>(ExitCode::kNumbersLost);
  if (!first) return code;
  const std::string json = report_json(request, report).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  write_and_print([&] { evaluation.write(json); }, request.json ? json : report_text(report, console.color()));
  console.require_written();
  return code;
}

}  // namespace

int run_eval(const EvalRequest& request) {
  if (request.max_samples && *request.max_samples < 1) {
    throw UserError("there is nothing to evaluate", "--max-samples", "give at least 1");
  }
  check_task_options(request.task);
  LaunchedRanks launched(
      [&](int ranks) { return load_config(request.run.config, request.run.overrides, {ranks}).run.report.output_dir; });
  return launched.run([&] { return eval_launched(request, launched); });
}

}  // namespace hone
