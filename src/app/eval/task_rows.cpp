#include "app/eval/task_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "data/formats/row_columns.h"
#include "data/formats/sample_encoder.h"
#include "text/row_template.h"

namespace hone {

namespace {

// target_delimiter and fewshot_delimiter in lm-evaluation-harness.
constexpr const char* kBeforeTarget = " ";
constexpr const char* kAfterExample = "\n\n";

/// Columns by which rows of multiple choice are known, and where their parts are.
struct ChoiceForm {
  std::array<const char*, 3> columns;  ///< question, choices, the right one
  const char* doc_to_text;
};

/// In this order: HellaSwag; ARC and OpenBookQA; MMLU, and the plain form.
constexpr ChoiceForm kChoiceForms[] = {
    {{"ctx", "endings", "label"}, "{{ctx}}"},
    {{"question", "choices", "answerKey"}, "Question: {{question}}\nAnswer:"},
    {{"question", "choices", "answer"}, "Question: {{question}}\nAnswer:"},
};

const ChoiceForm* choice_form_of(const Json& row) {
  for (const ChoiceForm& form : kChoiceForms) {
    const bool fits = std::all_of(form.columns.begin(), form.columns.end(),
                                  [&](const char* c) { return row.contains(c) && !row[c].is_null(); });
    if (fits && row[form.columns[1]].is_structured()) return &form;
  }
  return nullptr;
}

/// What an option of the command line is about.
enum class Needs { kTask, kAnswers, kExactMatch };

struct GivenOption {
  bool given;
  const char* name;
  Needs needs;
};

std::vector<GivenOption> given_options(const TaskOptions& options) {
  return {{!options.metrics.empty(), "--metrics", Needs::kTask},
          {!options.doc_to_text.empty(), "--doc-to-text", Needs::kTask},
          {!options.doc_to_target.empty(), "--doc-to-target", Needs::kTask},
          {!options.doc_to_choice.empty(), "--doc-to-choice", Needs::kTask},
          {options.num_fewshot != 0, "--num-fewshot", Needs::kTask},
          {!options.fewshot_file.empty(), "--fewshot-file", Needs::kTask},
          {!options.predictions.empty(), "--predictions", Needs::kTask},
          {!options.column_mapping.empty(), "--task-column-mapping", Needs::kAnswers},
          {!options.answer_pattern.empty(), "--answer-pattern", Needs::kAnswers},
          {options.group_select != 0, "--group-select", Needs::kAnswers},
          {!options.until.empty(), "--until", Needs::kAnswers},
          {options.ignore_case, "--ignore-case", Needs::kExactMatch},
          {options.ignore_punctuation, "--ignore-punctuation", Needs::kExactMatch},
          {options.ignore_numbers, "--ignore-numbers", Needs::kExactMatch},
          {!options.regexes_to_ignore.empty(), "--regexes-to-ignore", Needs::kExactMatch}};
}

std::vector<TaskMetric> metrics_named(const std::vector<std::string>& names) {
  std::vector<TaskMetric> metrics;
  const std::vector<std::string> known = names_of(all_choices<TaskMetric>());
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw UserError(fmt::format("'{}' is not a metric.{}", name, did_you_mean(name, known)), "--metrics",
                      fmt::format("choose among {}", fmt::join(known, ", ")));
    }
    const auto metric = choice_called<TaskMetric>(name);
    if (std::find(metrics.begin(), metrics.end(), metric) == metrics.end()) metrics.push_back(metric);
  }
  return metrics;
}

std::string part_text(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

/// `text` of a command line, where a shell leaves \n and \t as they are, with the characters that they mean.
std::string unescaped(std::string text) {
  for (const auto& [escape, character] : {std::pair{"\\n", "\n"}, std::pair{"\\t", "\t"}}) {
    for (size_t at = 0; (at = text.find(escape, at)) != std::string::npos; ++at) text.replace(at, 2, character);
  }
  return text;
}

/// A part of a row: a column, or what a template writes.
class RowPart {
 public:
  RowPart(const std::string& source, const char* option) : source_(source), option_(option) {
    const auto has = [&](const char* mark) { return source.find(mark) != std::string::npos; };
    if (has("{{") || has("{%") || source.starts_with('[')) {
      template_.emplace(source, option);
    }
  }

  bool stated() const { return !source_.empty(); }

  Json of(const Json& row, const std::string& where) const {
    if (template_) return template_->render(row, where);
    if (row.contains(source_)) return row[source_];
    throw UserError(
        fmt::format("the row has no column '{}'.{}", source_, nearest_column(row, source_)), where,
        fmt::format("{} names a column ({}), or is a template such as '{{{{question}}}}'", option_, column_names(row)));
  }

 private:
  std::string source_;
  const char* option_;
  std::optional<RowTemplate> template_;
};

/// The choices of a row: a list of texts, or {"text": [...], "label": [...]}.
struct Choices {
  std::vector<std::string> texts, labels;
};

Choices choices_of(Json value, const std::string& where) {
  if (value.is_string()) {  // by a template, or a column of JSON text
    value = Json::parse(value.get<std::string>(), nullptr, false);
    if (value.is_discarded()) {
      throw UserError("the choices are not a JSON list", where,
                      R"(write one, such as --doc-to-choice '["yes", "no"]' or '{{choices | tojson}}')");
    }
  }
  Choices choices;
  if (value.is_object() && value.contains("text")) {
    if (const auto labels = value.find("label"); labels != value.end() && labels->is_array()) {
      for (const Json& label : *labels) choices.labels.push_back(part_text(label));
    }
    value = Json(value["text"]);
  }
  if (!value.is_array() || value.size() < 2) {
    throw UserError("the choices are not a list of two or more texts", where, R"(write "choices": ["…", "…"])");
  }
  for (const Json& choice : value) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      throw UserError("a choice is not a text", where, R"(write "choices": ["…", "…"])");
    }
    choices.texts.push_back(choice.get<std::string>());
  }
  return choices;
}

size_t place_of(const std::vector<std::string>& texts, const std::string& text) {
  return static_cast<size_t>(std::find(texts.begin(), texts.end(), text) - texts.begin());
}

/// Which choice is right: an index from 0; or a text: a label, a choice, a letter from A on, or an index.
size_t right_of(const Json& target, const Choices& choices, const std::string& where) {
  const size_t count = choices.texts.size();
  size_t index = count;
  if (target.is_number_integer()) {
    const auto number = target.get<int64_t>();
    if (number >= 0) index = static_cast<size_t>(number);
  } else if (target.is_string()) {
    const std::string text = stripped(target.get<std::string>());
    if (const size_t label = place_of(choices.labels, text); label < choices.labels.size()) {
      index = label;
    } else if (const size_t same = place_of(choices.texts, text); same < count) {
      index = same;
    } else if (text.size() == 1 && text[0] >= 'A' && text[0] <= 'Z') {
      index = static_cast<size_t>(text[0] - 'A');
    } else {
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), index);
      if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) index = count;
    }
  }
  if (index < count) return index;
  throw UserError(fmt::format("{} does not name one of the {} choices", target.dump(), count), where,
                  "write the index from 0, the letter from A on, or the text of a choice");
}

/// The context without white space at its end, which goes to the continuation, as lm-evaluation-harness does.
std::pair<std::string, std::string> space_moved(const std::string& context, const std::string& continuation) {
  const std::string kept = context.substr(0, context.find(stripped(context)) + stripped(context).size());
  return {kept, context.substr(kept.size()) + continuation};
}

class TaskReader {
 public:
  TaskReader(const TaskOptions& options, const Tokenizer& tokenizer, const ChatPrompt& chat,
             const JsonObject& template_variables)
      : options_(options),
        tokenizer_(tokenizer),
        leading_(leading_ids(tokenizer)),
        has_template_(chat.has_template()),
        mapping_(options.column_mapping.empty()
                     ? ColumnMapping()
                     : ColumnMapping::parse(parse_json(options.column_mapping), "--task-column-mapping")),
        prompts_(
            tokenizer, chat,
            {.system = "", .template_variables = template_variables, .raw = !chat.has_template(), .mapping = mapping_}),
        text_(unescaped(options.doc_to_text), "--doc-to-text"),
        target_(unescaped(options.doc_to_target), "--doc-to-target"),
        choices_(options.doc_to_choice, "--doc-to-choice") {
    task_.metrics = metrics_named(options.metrics);
    task_.group_select = options.group_select;
    if (!options.answer_pattern.empty()) task_.pattern.emplace(options.answer_pattern, "--answer-pattern");
    for (const std::string& pattern : options.regexes_to_ignore) {
      task_.exact.regexes_to_ignore.emplace_back(pattern, "--regexes-to-ignore");
    }
    task_.exact.ignore_case = options.ignore_case;
    task_.exact.ignore_punctuation = options.ignore_punctuation;
    task_.exact.ignore_numbers = options.ignore_numbers;
  }

  Task read(std::optional<int64_t> max_rows) {
    std::vector<LocatedRow> rows = rows_of(options_.file), examples;
    const auto wanted = static_cast<size_t>(options_.num_fewshot);
    const bool apart = !options_.fewshot_file.empty();
    if (apart && wanted > 0) examples = rows_of(options_.fewshot_file);
    std::vector<LocatedRow>& pool = apart ? examples : rows;
    if (wanted > pool.size()) {
      throw UserError(fmt::format("{} examples are asked for, and there are {} rows", wanted, pool.size()),
                      apart ? options_.fewshot_file : options_.file, "lower --num-fewshot");
    }
    const size_t left_out = apart ? 0 : wanted;
    if (left_out == rows.size()) {
      throw UserError(rows.empty() ? "the file has no rows" : "all rows are examples: none is left to evaluate",
                      options_.file, "name rows for the examples with --fewshot-file");
    }
    choose_kind(rows.front());
    for (size_t i = 0; i < wanted; ++i) add_example(pool[i]);
    size_t end = rows.size();
    if (max_rows) end = std::min(end, left_out + static_cast<size_t>(*max_rows));
    for (size_t i = left_out; i < end; ++i) {
      task_.rows.push_back(task_.of_choices ? choice_row(rows[i]) : answer_row(rows[i]));
      task_.rows.back().id = static_cast<int64_t>(i);
    }
    if (!task_.of_choices) extract_references();
    for (const std::string& text : options_.until) task_.until.push_back(unescaped(text));
    std::erase(task_.until, "");
    if (task_.until.empty() && only_texts_) task_.until = {kAfterExample};
    return std::move(task_);
  }

 private:
  std::vector<LocatedRow> rows_of(const std::string& file) const {
    std::vector<LocatedRow> rows;
    read_rows(file, mapping_, [&](Json row, const std::string& where) {
      rows.push_back({JsonValue(std::move(row)), where});
    });
    return rows;
  }

  /// Multiple choice or generated answers, by the metrics, else by the first row.
  void choose_kind(const LocatedRow& first) {
    const bool has_choices = choices_.stated() || choice_form_of(first.row) != nullptr;
    if (task_.metrics.empty()) {
      task_.metrics =
          has_choices ? std::vector{TaskMetric::kAcc, TaskMetric::kAccNorm} : std::vector{TaskMetric::kExactMatch};
    }
    task_.of_choices = is_of_choices(task_.metrics.front());
    if (task_.of_choices && !has_choices) {
      throw UserError(fmt::format("{} needs rows of multiple choice, which the columns ({}) are not",
                                  task_.metrics.front(), column_names(first.row)),
                      first.where,
                      "have columns question, choices and answer, or name them with --doc-to-text, --doc-to-choice and "
                      "--doc-to-target");
    }
    if (task_.of_choices) {
      for (const GivenOption& option : given_options(options_)) {
        if (!option.given || option.needs == Needs::kTask) continue;
        throw UserError("rows of multiple choice are scored by likelihood: the model writes no answer", option.name,
                        "leave it out, or have answers written with --metrics exact_match");
      }
    } else if (choices_.stated()) {
      throw UserError(fmt::format("{} compares written answers, which have no choices", task_.metrics.front()),
                      "--doc-to-choice", "leave it out, or measure acc");
    }
    if (!task_.of_choices && text_.stated() && !target_.stated()) {
      throw UserError("the reference is missing", "--doc-to-target",
                      "name the column of the answer, or give a template such as '{{answer}}'");
    }
  }

  void add_example(const LocatedRow& row) {
    if (task_.of_choices) {
      const Parts parts = parts_of(row);
      before_ += parts.text + kBeforeTarget + parts.choices.texts[parts.right] + kAfterExample;
      return;
    }
    if (text_.stated()) {
      before_ += part_text(text_.of(row.row, row.where)) + kBeforeTarget + part_text(target_.of(row.row, row.where)) +
                 kAfterExample;
      return;
    }
    AskedRow asked = prompts_.read_asked(row.row, row.where);
    if (!asked.answer) no_reference(row.where);
    if (const auto* text = std::get_if<std::string>(&asked.prompt)) {
      before_ += *text + *asked.answer + kAfterExample;
    } else if (auto* chat = std::get_if<ChatInput>(&asked.prompt)) {
      for (Json& message : *chat->messages) {
        if (message.value("role", "") != "system") turns_->push_back(std::move(message));
      }
      turns_->push_back(Json{{"role", "assistant"}, {"content", *asked.answer}});
    } else {
      throw UserError("a row of tokens cannot be an example", row.where, "leave out --num-fewshot");
    }
  }

  [[noreturn]] static void no_reference(const std::string& where) {
    throw UserError("the row has no answer to compare with", where,
                    "add one (a last message of the assistant, response, completion), or name it with --doc-to-text "
                    "and --doc-to-target");
  }

  TaskRow answer_row(const LocatedRow& row) {
    TaskRow result{.where = row.where};
    if (text_.stated()) {
      result.asked = part_text(text_.of(row.row, row.where));
      result.reference = part_text(target_.of(row.row, row.where));
      if (stripped(result.asked).empty()) throw UserError("the prompt is empty", row.where, "see --doc-to-text");
      result.prompt = prompts_.encode({.prompt = before_ + result.asked}, row.where);
      return result;
    }
    AskedRow asked = prompts_.read_asked(row.row, row.where);
    if (target_.stated()) asked.answer = part_text(target_.of(row.row, row.where));
    if (!asked.answer && !asked.answer_ids.empty()) asked.answer = tokenizer_.decode(asked.answer_ids, true);
    if (!asked.answer || stripped(*asked.answer).empty()) no_reference(row.where);
    result.reference = *asked.answer;
    only_texts_ = only_texts_ && std::holds_alternative<std::string>(asked.prompt);
    if (auto* text = std::get_if<std::string>(&asked.prompt)) {
      result.asked = *text;
      *text = before_ + *text;
    } else if (auto* chat = std::get_if<ChatInput>(&asked.prompt)) {
      if (!has_template_) {
        throw UserError("the model has no chat template, which the row needs", row.where,
                        "give the prompt as text: --doc-to-text 'Question: {{question}}\\nAnswer:' --doc-to-target "
                        "'{{answer}}'");
      }
      Json& messages = *chat->messages;
      const bool system = !messages.empty() && messages.front().value("role", "") == "system";
      messages.insert(messages.begin() + (system ? 1 : 0), turns_->begin(), turns_->end());
    } else if (!turns_->empty() || !before_.empty()) {
      throw UserError("examples cannot go before a row of tokens", row.where, "leave out --num-fewshot");
    }
    result.prompt = prompts_.encode(std::move(asked), row.where);
    if (result.asked.empty()) {
      result.asked = !result.prompt.asked.empty() ? result.prompt.asked : tokenizer_.decode(result.prompt.ids, true);
    }
    return result;
  }

  /// A row of multiple choice.
  struct Parts {
    std::string text;
    Choices choices;
    size_t right = 0;
  };

  Parts parts_of(const LocatedRow& row) const {
    const ChoiceForm* form = choice_form_of(row.row);
    if (form == nullptr && !(choices_.stated() && text_.stated() && target_.stated())) {
      throw UserError(fmt::format("the columns ({}) are not those of multiple choice", column_names(row.row)),
                      row.where,
                      "have question, choices and answer, or give --doc-to-text, --doc-to-choice and --doc-to-target");
    }
    Parts parts;
    parts.text = text_.stated() ? part_text(text_.of(row.row, row.where))
                                : RowTemplate(form->doc_to_text, "--doc-to-text").render(row.row, row.where);
    parts.choices =
        choices_of(choices_.stated() ? choices_.of(row.row, row.where) : row.row[form->columns[1]], row.where);
    parts.right = right_of(target_.stated() ? target_.of(row.row, row.where) : row.row[form->columns[2]], parts.choices,
                           row.where);
    if (stripped(parts.text).empty()) throw UserError("the question is empty", row.where, "see --doc-to-text");
    return parts;
  }

  TaskRow choice_row(const LocatedRow& row) const {
    Parts parts = parts_of(row);
    TaskRow result{.where = row.where, .asked = parts.text, .choices = parts.choices.texts, .right = parts.right};
    for (const std::string& choice : result.choices) {
      result.texts.push_back(scored(before_ + parts.text, kBeforeTarget + choice, row.where));
    }
    return result;
  }

  /// Tokens of the context, then those that the whole text has beyond as many.
  ScoredText scored(const std::string& given, const std::string& choice, const std::string& where) const {
    const auto [context, continuation] = space_moved(given, choice);
    const std::vector<int32_t> before = tokenizer_.encode(context, false);
    const std::vector<int32_t> whole = tokenizer_.encode(context + continuation, false);
    ScoredText text{.ids = leading_};
    text.ids.insert(text.ids.end(), before.begin(), before.end());
    text.from = static_cast<int64_t>(text.ids.size());
    if (whole.size() <= before.size() || text.from < 1) {
      throw UserError("a choice has no tokens of its own after the question", where, "write longer choices");
    }
    text.ids.insert(text.ids.end(), whole.begin() + static_cast<std::ptrdiff_t>(before.size()), whole.end());
    return text;
  }

  /// The pattern finds the answer in all references, or in none, which are then whole.
  void extract_references() {
    const TaskRow* without = nullptr;
    size_t found = 0;
    for (TaskRow& row : task_.rows) {
      const std::optional<std::string> answer = task_.answer_in(row.reference);
      if (!answer && without == nullptr) without = &row;
      if (answer) ++found;
    }
    if (found > 0 && without != nullptr) {
      throw UserError(fmt::format("the pattern finds no answer in the reference of this row, but in {} of {}", found,
                                  task_.rows.size()),
                      without->where, "widen --answer-pattern, or correct the row");
    }
    for (TaskRow& row : task_.rows)
      row.reference = found > 0 ? *task_.answer_in(row.reference) : stripped(row.reference);
  }

  const TaskOptions& options_;
  const Tokenizer& tokenizer_;
  const std::vector<int32_t> leading_;
  const bool has_template_;
  const ColumnMapping mapping_;
  const PromptReader prompts_;
  const RowPart text_, target_, choices_;
  Task task_;
  std::string before_;  // examples before a text
  JsonArray turns_;     // examples before a chat
  bool only_texts_ = true;
};

}  // namespace

std::optional<std::string> Task::answer_in(const std::string& text) const {
  return pattern ? pattern->find(text, group_select) : std::optional(stripped(text));
}

std::vector<ScoredText> Task::all_texts() const {
  std::vector<ScoredText> texts;
  for (const TaskRow& row : rows) texts.insert(texts.end(), row.texts.begin(), row.texts.end());
  return texts;
}

std::string Task::fingerprint() const {
  uint32_t sum = 0;
  const auto add = [&](const auto& values) { sum = extend_crc32c(sum, std::as_bytes(std::span(values))); };
  for (const TaskRow& row : rows) {
    add(row.prompt.ids);
    add(row.reference);
    for (const ScoredText& text : row.texts) add(text.ids);
  }
  return fmt::format("{} rows, checksum {:08x}", rows.size(), sum);
}

void check_task_options(const TaskOptions& options) {
  if (!options.any()) {
    for (const GivenOption& option : given_options(options)) {
      if (option.given) {
        throw UserError("the option is of a task, and none is given", option.name, "name its rows with --task FILE");
      }
    }
    return;
  }
  const std::vector<TaskMetric> metrics = metrics_named(options.metrics);
  for (const TaskMetric metric : metrics) {
    if (is_of_choices(metric) == is_of_choices(metrics.front())) continue;
    throw UserError(fmt::format("{} is of multiple choice and {} of written answers, or the other way round",
                                metrics.front(), metric),
                    "--metrics", "evaluate twice, with the metrics of one kind each");
  }
  if (options.num_fewshot < 0) throw UserError("the number of examples is negative", "--num-fewshot", "give 0 or more");
  if (options.num_fewshot == 0 && !options.fewshot_file.empty()) {
    throw UserError("no examples are asked for", "--fewshot-file", "say how many with --num-fewshot");
  }
  if (options.group_select != 0 && options.answer_pattern.empty()) {
    throw UserError("there is no pattern whose matches could be chosen", "--group-select", "give --answer-pattern");
  }
  if (!options.column_mapping.empty() && !options.doc_to_text.empty()) {
    throw UserError("a template reads the columns by their own names", "--task-column-mapping", "leave it out");
  }
  const bool exact =
      metrics.empty() || std::find(metrics.begin(), metrics.end(), TaskMetric::kExactMatch) != metrics.end();
  for (const GivenOption& option : given_options(options)) {
    if (!option.given || option.needs != Needs::kExactMatch || exact) continue;
    throw UserError("the option is of exact_match, which is not measured", option.name, "leave it out");
  }
}

Task read_task(const TaskOptions& options, const Tokenizer& tokenizer, const ChatPrompt& chat,
               const JsonObject& template_variables, std::optional<int64_t> max_rows) {
  return TaskReader(options, tokenizer, chat, template_variables).read(max_rows);
}

}  // namespace hone
