#include "app/inference/generation_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "core/base/error.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "data/dataset/dataset_reader.h"
#include "data/formats/row_columns.h"
#include "data/formats/token_block.h"
#include "data/readers/jsonl_reader.h"
#include "report/humanise.h"

namespace hone {

namespace {

bool has_role(const Json& message, const char* role) { return message.value("role", "") == role; }

/// The row in the form of training data: a missing answer becomes empty, and a row with messages has only the columns
/// of a chat.
Json as_training_row(const RowColumns& columns) {
  Json row = columns.row();
  const auto put = [&](const char* name, Json value) { row[columns.label(name)] = std::move(value); };
  if (columns.find("messages")) {
    for (const char* name : {"prompt", "completion", "response", "text", "instruction", "output", "input_ids"}) {
      if (!columns.mapping().takes(name)) row.erase(name);
    }
    return row;
  }
  const Json* prompt = columns.find("prompt");
  const bool question = prompt || columns.find("question");
  if (prompt && prompt->is_array() && !columns.find("question")) {
    if (!columns.find("completion")) put("completion", Json::array({{{"role", "assistant"}, {"content", ""}}}));
  } else if (columns.find("instruction")) {
    if (!columns.find("output") && !columns.mapping().column("response")) put("output", "");
  } else if (question && !columns.find("response") && !columns.find("answer") && !columns.find("completion")) {
    put("response", "");
  }
  return row;
}

/// The conversation without the answer at its end, and the answer if it is one message.
AskedRow unanswered(Conversation conversation) {
  Json& messages = *conversation.messages;
  std::vector<Json> answers;
  const auto cut = [&](size_t size) {
    for (size_t i = size; i < messages.size(); ++i) answers.push_back(messages[i]);
    messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(size), messages.end());
  };
  if (conversation.completion_begin) cut(*conversation.completion_begin);
  while (!messages.empty() && has_role(messages.back(), "assistant")) cut(messages.size() - 1);
  AskedRow asked;
  if (answers.size() == 1) {
    const Json content = answers.front().value("content", Json());
    if (content.is_string()) asked.answer = content.get<std::string>();
  }
  ChatInput input;
  input.messages = std::move(messages);
  input.tools = std::move(conversation.tools);
  input.variables = std::move(conversation.template_kwargs);
  asked.prompt = std::move(input);
  return asked;
}

/// The tokens before the first supervised token, and the supervised ones that follow.
AskedRow prompt_of(const TokenizedRow& row, const std::string& where) {
  size_t size = 1;
  while (size < row.labels.size() && row.labels[size] == kIgnoredLabel) ++size;
  if (size == row.labels.size() || row.labels[0] != kIgnoredLabel) {
    throw UserError("the tokens are not a prompt with an answer", where,
                    "state labels: -100 for each token of the prompt");
  }
  size_t end = size;
  while (end < row.labels.size() && row.labels[end] != kIgnoredLabel) ++end;
  const auto at = [&](size_t i) { return row.input_ids.begin() + static_cast<std::ptrdiff_t>(i); };
  return {.prompt = std::vector<int32_t>(row.input_ids.begin(), at(size)), .answer_ids = {at(size), at(end)}};
}

}  // namespace

PromptReader::PromptReader(const Tokenizer& tokenizer, const ChatPrompt& chat, const PromptReaderOptions& options)
    : tokenizer_(tokenizer), chat_(chat), options_(options) {
  if (options_.raw && !options_.system.empty()) {
    throw UserError("a system message needs the chat template, which --raw leaves out", "--system",
                    "leave out --raw or --system");
  }
}

PromptRow PromptReader::read_messages(ChatInput input, const std::string& where) const {
  if (options_.raw) {
    throw UserError("messages need the chat template, which --raw leaves out", where, "leave out --raw");
  }
  if (input.messages.empty()) {
    throw UserError("there is no message to answer", where, "add a message of the user");
  }
  if (!options_.system.empty() && !has_role(input.messages->front(), "system")) {
    input.messages->insert(input.messages->begin(), Json{{"role", "system"}, {"content", options_.system}});
  }
  Json variables = options_.template_variables;
  variables.update(input.variables);
  input.variables = std::move(variables);
  const Json content = input.messages->back().value("content", Json(""));
  PromptRow prompt{nullptr, where, {}, content.is_string() ? content.get<std::string>() : "", true};
  prompt.ids = chat_.encode(std::move(input), where);
  return prompt;
}

PromptRow PromptReader::read_text(const std::string& text, const std::string& where) const {
  if (text.empty()) throw UserError("the prompt is empty", where, "give a text to continue or to answer");
  if (options_.raw) return {nullptr, where, tokenizer_.encode(text, true), text};
  ChatInput input;
  input.messages->push_back(Json{{"role", "user"}, {"content", text}});
  return read_messages(std::move(input), where);
}

AskedRow PromptReader::read_asked(const Json& row, const std::string& where) const {
  const RowColumns columns(row, "auto", where, options_.mapping);
  const Json* prompt = columns.find("prompt");
  if (prompt && prompt->is_string() && !columns.find("question") && !columns.find("messages")) {
    const auto& text = prompt->get_ref<const std::string&>();
    const Json* completion = columns.find("completion");
    if (options_.raw || text.empty() || completion) {
      if (text.empty()) throw UserError("the prompt is empty", where, "give a text to continue or to answer");
      AskedRow asked{.prompt = text};
      if (completion && completion->is_string()) asked.answer = completion->get<std::string>();
      return asked;
    }
  }
  const LocatedRow located{as_training_row(columns), where};
  const DetectedFormat detected = detect_format(std::span(&located, 1), options_.mapping);
  FormattedRow formatted = format_row(located.row, detected.format, where, options_.mapping);
  if (auto* conversation = std::get_if<Conversation>(&formatted)) return unanswered(std::move(*conversation));
  if (const auto* tokens = std::get_if<TokenizedRow>(&formatted)) return prompt_of(*tokens, where);
  throw UserError("the row is a text that asks nothing", where, "give a prompt, or messages");
}

PromptRow PromptReader::encode(AskedRow asked, const std::string& where) const {
  if (auto* input = std::get_if<ChatInput>(&asked.prompt)) return read_messages(std::move(*input), where);
  if (auto* ids = std::get_if<std::vector<int32_t>>(&asked.prompt)) return {nullptr, where, std::move(*ids), ""};
  const std::string& text = std::get<std::string>(asked.prompt);
  return {nullptr, where, tokenizer_.encode(text, true), text};
}

std::vector<PromptRow> PromptReader::read_lines(const std::string& path) const {
  std::istringstream file(read_whole_file(path, kMostTypedBytes, FileSource::kAlsoPipe));
  std::vector<PromptRow> prompts;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    PromptRow prompt = read_text(line, fmt::format("{}:{}", path, number));
    prompt.row = Json{{"prompt", line}};
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) throw UserError("the file has no prompts", path, "write a prompt a line");
  return prompts;
}

void read_rows(const std::string& path, const ColumnMapping& mapping,
               const std::function<void(Json row, const std::string& where)>& take) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error) || std::filesystem::is_directory(path, error)) {
    const DatasetFiles files = files_of_dataset(path, "");
    for (const std::string& file : files.files) {
      const std::unique_ptr<RowReader> reader = open_rows(file, files, mapping);
      for (RawRow raw; reader->next(raw);) take(parse_row(raw), raw.where());
    }
  } else {  // a pipe with JSONL
    JsonlReader reader(path, {.source = FileSource::kAlsoPipe});
    for (RawRow raw; reader.next(raw);) take(parse_row(raw), raw.where());
  }
}

std::vector<PromptRow> PromptReader::read_file(const std::string& path) const {
  if (path.ends_with(".txt")) return read_lines(path);
  std::vector<PromptRow> prompts;
  read_rows(path, options_.mapping, [&](Json row, const std::string& where) {
    PromptRow& prompt = prompts.emplace_back(read_row(row, where));
    prompt.row = std::move(row);
    if (prompt.ids.empty()) throw UserError("the prompt is empty", prompt.where, "give a text to continue");
  });
  if (prompts.empty()) throw UserError("the file has no rows", path, R"(write rows of {"prompt": …})");
  return prompts;
}

int64_t longest_sequence(const std::vector<PromptRow>& prompts, int64_t max_new_tokens, int64_t context) {
  int64_t longest = 0;
  for (const PromptRow& prompt : prompts) {
    const auto tokens = static_cast<int64_t>(prompt.ids.size());
    if (tokens >= context) {
      throw UserError(fmt::format("the prompt has {} tokens, and the model's context {}, the answer included",
                                  with_commas(tokens), with_commas(context)),
                      prompt.where, "shorten the prompt");
    }
    longest = std::max(longest, tokens);
  }
  return longest + std::min(max_new_tokens, context - longest);
}

}  // namespace hone
