// detect_format: finds the format that matches the columns.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/formats/row_columns.h"
#include "data/formats/row_formats.h"
#include "data/formats/sample_format.h"

namespace hone {

namespace {

constexpr std::array<SampleFormat, 7> kDetected = {
    SampleFormat::kMessages,         SampleFormat::kShareGpt, SampleFormat::kAlpaca,   SampleFormat::kPromptResponse,
    SampleFormat::kPromptCompletion, SampleFormat::kText,     SampleFormat::kTokenized};

/// Hone's names of the columns that a format reads.
std::vector<std::string_view> columns_of(SampleFormat format) {
  switch (format) {
    case SampleFormat::kMessages:
    case SampleFormat::kShareGpt:
      return {"messages", "system", "tools", "chat_template_kwargs"};
    case SampleFormat::kAlpaca:
      return {"instruction",         "input", "output", "system", "history", "prompt", "response", "tools",
              "chat_template_kwargs"};
    case SampleFormat::kPromptResponse:
      return {"prompt", "response", "system", "history", "tools", "chat_template_kwargs"};
    case SampleFormat::kPromptCompletion:
      return {"prompt", "completion", "system", "tools", "chat_template_kwargs"};
    case SampleFormat::kText:
      return {"text"};
    case SampleFormat::kTokenized:
      return {"input_ids", "labels", "weights", "attention_mask"};
    case SampleFormat::kAuto:
      break;
  }
  return known_columns();
}

std::vector<std::string_view> not_read(SampleFormat format, const ColumnMapping& mapping) {
  const std::vector<std::string_view> read = columns_of(format);
  std::vector<std::string_view> rest = mapping.mapped_columns();
  std::erase_if(rest, [&](std::string_view name) { return std::find(read.begin(), read.end(), name) != read.end(); });
  return rest;
}

struct Fit {
  SampleFormat format = SampleFormat::kAuto;
  std::string columns;  ///< "column 'messages'"
};

/// A column and its meaning, for a text such as "columns 'question' as user and 'response' as assistant".
struct Use {
  std::string column;
  std::string_view meaning = "";
};

std::string said(const std::vector<Use>& uses) {
  std::string text = uses.size() == 1 ? "column " : "columns ";
  for (size_t i = 0; i < uses.size(); ++i) {
    if (i > 0) text += i + 1 == uses.size() ? " and " : ", ";
    text += fmt::format("'{}'", uses[i].column);
    if (!uses[i].meaning.empty() && uses[i].meaning != uses[i].column) text += fmt::format(" as {}", uses[i].meaning);
  }
  return text;
}

/// Whether the first message is {"from": …}.
bool is_sharegpt(const RowColumns& columns, const Json& list) {
  if (columns.mapping().message_key("role") || columns.mapping().message_key("content")) return false;
  const bool message = list.is_array() && !list.empty() && list[0].is_object();
  return message && !list[0].contains("role") && list[0].contains("from");
}

/// Adds the chat format that matches the list of messages, if any.
void fit_messages(const RowColumns& columns, std::vector<Fit>& fits) {
  const Json* messages = columns.find("messages");
  if (messages) {
    const bool sharegpt = is_sharegpt(columns, *messages);
    fits.push_back({sharegpt ? SampleFormat::kShareGpt : SampleFormat::kMessages,
                    said({{columns.label("messages"), "messages"}})});
  }
  if (columns.mapping().column("messages")) return;
  for (const char* name : {"conversations", "conversation"}) {
    if (columns.find(name)) fits.push_back({SampleFormat::kShareGpt, said({{name}})});
  }
}

void fit_turns(const RowColumns& columns, std::vector<Fit>& fits) {
  const OneTurnColumns alpaca = alpaca_columns(columns);
  const bool own_names = columns.find("instruction") || columns.find("output") || columns.mapping().column("input");
  if (own_names && columns.find(alpaca.prompt) && columns.find(alpaca.response)) {
    std::vector<Use> uses = {{columns.label(alpaca.prompt), "instruction"}};
    if (columns.find("input")) uses.push_back({columns.label("input"), "input"});
    uses.push_back({columns.label(alpaca.response), "output"});
    fits.push_back({SampleFormat::kAlpaca, said(uses)});
  }
  const OneTurnColumns turn = prompt_response_columns(columns);
  if (columns.find(turn.prompt) && columns.find(turn.response)) {
    std::vector<Use> uses;
    if (!turn.system.empty() && columns.find(turn.system)) uses.push_back({columns.label(turn.system), "system"});
    uses.push_back({columns.label(turn.prompt), "user"});
    uses.push_back({columns.label(turn.response), "assistant"});
    fits.push_back({SampleFormat::kPromptResponse, said(uses)});
  }
}

std::vector<Fit> fits_of(const RowColumns& columns) {
  std::vector<Fit> fits;
  fit_messages(columns, fits);
  fit_turns(columns, fits);
  if (columns.find("prompt") && columns.find("completion")) {
    fits.push_back({SampleFormat::kPromptCompletion,
                    said({{columns.label("prompt"), "prompt"}, {columns.label("completion"), "completion"}})});
  }
  if (columns.find("text")) fits.push_back({SampleFormat::kText, said({{columns.label("text"), "text"}})});
  if (columns.find("input_ids")) {
    fits.push_back({SampleFormat::kTokenized, said({{columns.label("input_ids"), "input_ids"}})});
  }
  std::erase_if(fits, [&](const Fit& fit) { return !not_read(fit.format, columns.mapping()).empty(); });
  return fits;
}

/// "question: Question, answer: Answer" for the columns whose lower case is in `known`.
std::string differing_in_case(const Json& row, std::span<const std::string_view> known) {
  std::string pairs;
  for (const auto& [name, value] : row.items()) {
    const std::string lower = lower_case(name);
    if (lower == name || row.contains(lower) || std::find(known.begin(), known.end(), lower) == known.end()) continue;
    pairs += fmt::format("{}{}: {}", pairs.empty() ? "" : ", ", lower, name);
  }
  return pairs;
}

[[noreturn]] void refuse_unknown(const RowColumns& columns) {
  const Json& row = columns.row();
  for (const std::string_view name : columns.mapping().mapped_columns()) columns.at(name);
  if (row.contains("chosen") && row.contains("rejected")) {
    columns.fail(fmt::format("the columns ({}) are those of preference pairs, which are not trained on in this version",
                             column_names(row)),
                 fmt::format("to train on the chosen answers, write in the data set's entry: column_mapping: {}, "
                             "ignore_columns: [rejected]",
                             row["chosen"].is_array() ? "{messages: chosen}" : "{prompt: …, response: chosen}"));
  }
  static constexpr std::array<std::string_view, 11> kColumns = {
      "messages", "conversations", "prompt", "completion", "instruction", "output",
      "question", "response",      "answer", "text",       "input_ids"};
  if (const std::string renamed = differing_in_case(row, kColumns); !renamed.empty()) {
    columns.fail(fmt::format("the columns fit no format: {}; names differ in upper and lower case", column_names(row)),
                 fmt::format("rename them, or write in the data set's entry: column_mapping: {{{}}}", renamed));
  }
  std::string hint;
  for (const auto& [name, value] : row.items()) {
    if (hint.empty()) hint = did_you_mean(name, kColumns);
  }
  columns.fail(fmt::format("the columns fit no format: {}", column_names(row)),
               fmt::format("messages needs 'messages', sharegpt 'conversations', alpaca 'instruction' and 'output', "
                           "prompt_response 'prompt' or 'question' and 'response', prompt_completion 'prompt' and "
                           "'completion', text 'text', tokenized 'input_ids'; or map your columns: column_mapping: "
                           "{{prompt: …, response: …}}.{}",
                           hint));
}

Fit fit_of(const LocatedRow& located, const ColumnMapping& mapping) {
  const RowColumns columns(located.row, "auto", located.where, mapping);
  const std::vector<Fit> fits = fits_of(columns);
  if (fits.size() == 1) return fits.front();
  if (fits.empty()) refuse_unknown(columns);
  std::string candidates;
  std::vector<std::string_view> names;
  for (const Fit& fit : fits) {
    candidates += fmt::format("{}{} ({})", candidates.empty() ? "" : ", ", name_of(fit.format), fit.columns);
    if (names.empty() || names.back() != name_of(fit.format)) names.push_back(name_of(fit.format));
  }
  if (names.size() == 1) {
    columns.fail(fmt::format("several columns match: {}", candidates),
                 "choose one: column_mapping: {messages: …} in the data set's entry");
  }
  columns.fail(fmt::format("the columns fit several formats: {}", candidates),
               fmt::format("choose one: type: {} in the data set's entry", fmt::join(names, ", or type: ")));
}

}  // namespace

DetectedFormat detect_format(std::span<const LocatedRow> rows, const ColumnMapping& mapping) {
  HONE_ASSERT(!rows.empty());
  const Fit first = fit_of(rows.front(), mapping);
  for (const LocatedRow& row : rows.subspan(1)) {
    const Fit fit = fit_of(row, mapping);
    if (fit.format == first.format) continue;
    throw UserError(
        fmt::format("this row is {}, but {} is {}", name_of(fit.format), rows.front().where, name_of(first.format)),
        row.where, "give each data set one format");
  }
  return {first.format, fmt::format("{} in {}", first.columns, rows.front().where)};
}

void check_mapping(SampleFormat format, const ColumnMapping& mapping, const std::string& where) {
  const std::vector<std::string_view> rest = not_read(format, mapping);
  if (rest.empty()) return;
  throw UserError(
      fmt::format("column_mapping names '{}', which the format {} does not read", rest.front(), name_of(format)), where,
      fmt::format("it reads {}", fmt::join(columns_of(format), ", ")));
}

}  // namespace hone
