#include "infer/chat_prompt.h"

#include <fmt/format.h>

#include "core/error.h"

namespace hone {

namespace {

/// Names of the special tokens, as transformers hands them to a template.
Json special_token_variables(const Tokenizer& tokenizer) {
  Json variables = Json::object();
  const SpecialTokens& special = tokenizer.special_tokens();
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    const auto token = id ? tokenizer.id_to_token(*id) : std::nullopt;
    if (token) variables[name] = *token;
  };
  add("bos_token", special.bos);
  add("eos_token", special.eos);
  add("pad_token", special.pad);
  add("unk_token", special.unk);
  return variables;
}

}  // namespace

ChatPrompt::ChatPrompt(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), special_tokens_(special_token_variables(tokenizer)) {
  if (const auto source = tokenizer.chat_template()) template_.emplace(*source, "chat_template");
}

std::string ChatPrompt::render(const Json& messages, const std::string& where, const Json& variables) const {
  if (!template_) {
    throw UserError("the model has no chat template, which messages need", where,
                    "give the prompt as plain text (raw), or put a chat_template.jinja into the model folder");
  }
  ChatInput input;
  input.messages = messages;
  input.variables = special_tokens_;
  input.variables.update(variables);
  input.add_generation_prompt = true;
  try {
    return template_->render(input).text;
  } catch (const UserError& error) {
    const std::string place = error.where().empty() ? where : fmt::format("{}, at {}", where, error.where());
    throw UserError(error.message(), place, error.fix());
  }
}

std::vector<int32_t> ChatPrompt::encode(const Json& messages, const std::string& where, const Json& variables) const {
  return tokenizer_.encode(render(messages, where, variables), false);
}

}  // namespace hone
