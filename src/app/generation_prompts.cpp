#include "app/generation_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "data/conversation_format.h"
#include "data/jsonl_reader.h"
#include "report/humanise.h"

namespace hone {

namespace {

bool has_role(const Json& message, const char* role) { return message.value("role", "") == role; }

/// The conversation of a row whose messages stand in `column`, without the answer it may end with.
ChatInput chat_of(const Json& row, const char* column, const std::string& where) {
  Json renamed = row;
  renamed["messages"] = row.at(column);
  Conversation conversation = conversation_of_messages(RowColumns(renamed, "messages", where));
  while (!conversation.messages.empty() && has_role(conversation.messages.back(), "assistant")) {
    conversation.messages.erase(conversation.messages.size() - 1);
  }
  ChatInput input;
  input.messages = std::move(conversation.messages);
  input.tools = std::move(conversation.tools);
  input.variables = std::move(conversation.template_kwargs);
  return input;
}

}  // namespace

PromptReader::PromptReader(const Tokenizer& tokenizer, const ChatPrompt& chat, const PromptReaderOptions& options)
    : tokenizer_(tokenizer), chat_(chat), options_(options) {
  if (options_.raw && !options_.system.empty()) {
    throw UserError("a system message needs the chat template, which --raw leaves out", "--system",
                    "leave out --raw or --system");
  }
}

std::vector<int32_t> PromptReader::encode_messages(ChatInput input, const std::string& where) const {
  if (options_.raw) {
    throw UserError("messages need the chat template, which --raw leaves out", where, "leave out --raw");
  }
  if (input.messages.empty()) {
    throw UserError("there is no message to answer", where, "add a message of the user");
  }
  if (!options_.system.empty() && !has_role(input.messages.front(), "system")) {
    input.messages.insert(input.messages.begin(), Json{{"role", "system"}, {"content", options_.system}});
  }
  Json variables = options_.template_variables;
  variables.update(input.variables);
  input.variables = std::move(variables);
  return chat_.encode(std::move(input), where);
}

std::vector<int32_t> PromptReader::encode_text(const std::string& text, const std::string& where) const {
  if (options_.raw) return tokenizer_.encode(text, true);
  if (text.empty()) throw UserError("the prompt is empty", where, "give a text to answer");
  ChatInput input;
  input.messages.push_back(Json{{"role", "user"}, {"content", text}});
  return encode_messages(std::move(input), where);
}

std::vector<int32_t> PromptReader::encode(const Json& row, const std::string& where) const {
  const auto found = [&](const char* column) { return row.contains(column) && !row.at(column).is_null(); };
  if (found("messages")) return encode_messages(chat_of(row, "messages", where), where);
  if (!found("prompt")) {
    throw UserError("the row has neither 'prompt' nor 'messages'", where,
                    fmt::format("it has the columns: {}", column_names(row)));
  }
  const Json& prompt = row.at("prompt");
  if (prompt.is_array()) return encode_messages(chat_of(row, "prompt", where), where);
  if (!prompt.is_string()) RowColumns(row, "prompt", where).fail_type("prompt", "text or a list of messages", prompt);
  return encode_text(prompt.get<std::string>(), where);
}

PromptRow PromptReader::read_text(const std::string& text, const std::string& where) const {
  PromptRow prompt{nullptr, where, encode_text(text, where)};
  if (prompt.ids.empty()) throw UserError("the prompt is empty", where, "give a text to continue");
  return prompt;
}

std::vector<PromptRow> PromptReader::read_lines(const std::string& path) const {
  std::ifstream file(path);
  if (!file) throw UserError("the file cannot be read", path, "check the path and its permissions");
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

std::vector<PromptRow> PromptReader::read_file(const std::string& path) const {
  if (path.ends_with(".txt")) return read_lines(path);
  std::vector<PromptRow> prompts;
  JsonlReader reader(path);
  RawRow raw;
  while (reader.next(raw)) {
    PromptRow& prompt = prompts.emplace_back(PromptRow{parse_row(raw), raw.where(), {}});
    prompt.ids = encode(prompt.row, prompt.where);
    if (prompt.ids.empty()) throw UserError("the prompt is empty", prompt.where, "give a text to continue");
  }
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
