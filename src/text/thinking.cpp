#include "text/thinking.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/jinja/template.h"

namespace hone {

namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

std::string_view without_blanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

/// The prompt for a plain question; nothing if the template rejects it.
std::optional<std::string> plain_prompt(const ChatTemplate& chat_template, const Json& variables) {
  ChatInput input;
  input.messages = Json::array({{{"role", "user"}, {"content", "question"}}});
  input.variables = variables;
  input.add_generation_prompt = true;
  try {
    return chat_template.render(input).text;
  } catch (const jinja::OutOfSteps&) {
    throw;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::optional<std::string> prompt_with(const ChatTemplate& chat_template, Json variables, const std::string& name,
                                       bool value) {
  variables[name] = value;
  return plain_prompt(chat_template, variables);
}

}  // namespace

std::optional<std::string> thinking_switch(const ChatTemplate& chat_template, const Json& variables) {
  for (const std::string name : {"enable_thinking", "thinking"}) {
    const auto off = prompt_with(chat_template, variables, name, false);
    const auto on = prompt_with(chat_template, variables, name, true);
    if (off && on && *off != *on) return name;
  }
  return std::nullopt;
}

bool prompt_thinks(const ChatTemplate& chat_template, const Json& variables) {
  const std::optional<std::string> prompt = plain_prompt(chat_template, variables);
  if (!prompt) return false;
  if (const auto name = thinking_switch(chat_template, variables)) {
    return prompt == prompt_with(chat_template, variables, *name, true);
  }
  return !open_think_tag(*prompt).empty();
}

std::string open_think_tag(std::string_view prompt) {
  const std::string_view text = without_blanks(prompt);
  for (const auto& [open, close] : kThinkTags) {
    if (text.ends_with(open)) return std::string(open);
  }
  return "";
}

bool has_think_block(std::string_view text) {
  for (const auto& [open, close] : kThinkTags) {
    const size_t end = text.find(close);
    if (end == std::string_view::npos) continue;
    const size_t begin = text.substr(0, end).find(open);
    // The opening tag may be in the prompt.
    const size_t from = begin == std::string_view::npos ? 0 : begin + open.size();
    if (!without_blanks(text.substr(from, end - from)).empty()) return true;
  }
  return false;
}

bool is_empty_think_block(std::string_view text) {
  text = without_blanks(text);
  return std::any_of(kThinkTags.begin(), kThinkTags.end(), [&](const auto& tags) {
    const auto& [open, close] = tags;
    return text.size() >= open.size() + close.size() && text.starts_with(open) && text.ends_with(close) &&
           without_blanks(text.substr(open.size(), text.size() - open.size() - close.size())).empty();
  });
}

}  // namespace hone
