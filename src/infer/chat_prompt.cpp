#include "infer/chat_prompt.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/chat_mask.h"
#include "text/chat_tokens.h"
#include "text/thinking.h"

namespace hone {

ChatPrompt::ChatPrompt(const Tokenizer& tokenizer, const ChatTemplateSource& source, bool split_special_tokens)
    : tokenizer_(tokenizer),
      split_special_tokens_(split_special_tokens),
      special_tokens_(special_token_variables(tokenizer)) {
  if (!source.text.empty()) {
    template_.emplace(source.text, source.name);
    source_for_tools_ = source.text;
  } else if (const auto own = tokenizer.chat_template()) {
    template_.emplace(*own, source.name);
    source_for_tools_ = *own;
    if (const auto tools = tokenizer.chat_template("tool_use")) {
      tool_template_.emplace(*tools, source.name + " tool_use");
      source_for_tools_ = *tools;
    }
  }
}

Json ChatPrompt::with_special_tokens(const Json& variables) const {
  Json all = special_tokens_;
  all.update(variables);
  return all;
}

std::optional<std::string> ChatPrompt::thinking_switch(const Json& variables) const {
  return template_ ? hone::thinking_switch(*template_, with_special_tokens(variables)) : std::nullopt;
}

bool ChatPrompt::thinks(const Json& variables) const {
  return template_ && prompt_thinks(*template_, with_special_tokens(variables));
}

const CallForm* ChatPrompt::call_form(const Json& variables) const {
  if (!template_) return nullptr;
  return find_call_form(tool_template_ ? *tool_template_ : *template_, source_for_tools_,
                        with_special_tokens(variables));
}

RenderedChat ChatPrompt::rendered(ChatInput input, const std::string& where) const {
  if (!template_) {
    throw UserError("the model has no chat template, which messages need", where,
                    "use --raw for plain text, or set a template with --chat-template");
  }
  input.variables = with_special_tokens(input.variables);
  input.add_generation_prompt = true;
  // As in transformers: of several templates, the one named tool_use if there are tools.
  const ChatTemplate& chosen = tool_template_ && input.tools->is_array() ? *tool_template_ : *template_;
  try {
    return chosen.render(input);
  } catch (const UserError& error) {
    if (error.where() == where) throw;
    const std::string place = error.where().empty() ? where : fmt::format("{}, at {}", where, error.where());
    throw UserError(error.message(), place, error.fix());
  }
}

std::string ChatPrompt::render(ChatInput input, const std::string& where) const {
  return rendered(std::move(input), where).text;
}

std::vector<int32_t> ChatPrompt::encode(ChatInput input, const std::string& where) const {
  return encode_with_text(std::move(input), where).ids;
}

EncodedPrompt ChatPrompt::encode_with_text(ChatInput input, const std::string& where) const {
  RenderedChat chat = rendered(std::move(input), where);
  std::vector<int32_t> ids = encode_chat(tokenizer_, chat, split_special_tokens_).ids;
  return {std::move(chat.text), std::move(ids)};
}

}  // namespace hone
