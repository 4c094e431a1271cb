// The rows of a task of `hone eval`: prompts with references for generated answers, or choices of which the likeliest
// counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/eval/task_metrics.h"
#include "app/inference/generation_prompts.h"
#include "core/text/json_value.h"
#include "train/plan/scored_texts.h"

namespace hone {

/// The options of a task, as the command line states them. Templates are Jinja over the columns of a row
/// (text/row_template.h).
struct TaskOptions {
  std::string file;                  ///< file or folder of rows; "": no task
  std::vector<std::string> metrics;  ///< names; empty: those of the rows' kind
  std::string column_mapping;        ///< JSON object, as column_mapping of a data set
  std::string doc_to_text;           ///< the prompt, which is then text; "": of the row's columns
  std::string doc_to_target;         ///< the reference or the right choice: a column's name, or a template
  std::string doc_to_choice;         ///< the choices: a column's name, or a template that writes a JSON list
  int64_t num_fewshot = 0;           ///< examples before each prompt
  std::string fewshot_file;          ///< their rows; "": the first ones of `file`, which are then not evaluated
  std::string answer_pattern;        ///< regular expression; "": all of the answer is compared
  int group_select = 0;              ///< which of its matches: 0 the first, -1 the last
  std::vector<std::string> until;    ///< texts at which an answer ends
  std::vector<std::string> regexes_to_ignore;
  bool ignore_case = false, ignore_punctuation = false, ignore_numbers = false;
  std::string predictions;  ///< JSONL file of each row's answer; "": none

  bool any() const { return !file.empty(); }
};

/// One row. Rows of generated answers have a prompt and a reference, others texts.
struct TaskRow {
  int64_t id = 0;          ///< its place among the rows of the file, from 0
  std::string where = {};  ///< file:line
  std::string asked = {};  ///< the prompt as text, without few-shot examples
  PromptRow prompt = {};
  std::string reference = {};             ///< what an answer is compared with
  std::vector<std::string> choices = {};  ///< their texts
  std::vector<ScoredText> texts = {};     ///< prompt and choice, of each choice
  size_t right = 0;                       ///< which one
};

/// A task that has been read.
struct Task {
  std::vector<TaskMetric> metrics;
  bool of_choices = false;
  std::vector<TaskRow> rows;
  std::vector<std::string> until;  ///< texts that end an answer
  std::optional<TaskPattern> pattern;
  int group_select = 0;
  ExactMatchOptions exact;

  /// What of an answer counts: what the pattern finds; else all of it, without white space at its ends. Nothing where
  /// the pattern finds nothing.
  std::optional<std::string> answer_in(const std::string& text) const;
  std::vector<ScoredText> all_texts() const;
  /// A checksum over all tokens and references, to compare ranks.
  std::string fingerprint() const;
};

/// UserError for options that do not go together, or without a task. Reads no file but checks patterns and templates.
void check_task_options(const TaskOptions& options);

/// Reads the rows of a task for one model, at most `max_rows`. `prompts` and `chat` are the model's. UserError with
/// file:line for a row that is not of the kind of the others, or lacks a reference, and for a choice without tokens.
Task read_task(const TaskOptions& options, const Tokenizer& tokenizer, const ChatPrompt& chat,
               const JsonObject& template_variables, std::optional<int64_t> max_rows);

}  // namespace hone
