// The tokenizer and the chat template beside a saved model or adapter, so that it is served as it was trained.
#pragma once

#include <filesystem>
#include <string>

#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace hone {

/// Copies tokenizer.json, its configuration and its chat template, as far as `from` has them.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Puts the tokenizer of `from` in place of the one in `to`, of which nothing stays.
void replace_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes `chat_template` (Jinja) the only template of the tokenizer in `directory`: writes chat_template.jinja, and
/// takes the templates out of tokenizer_config.json, of which one for tools would go before it.
void save_chat_template(const std::filesystem::path& directory, const std::string& chat_template);

/// Does that with the chat_template.jinja of `from`, if it has one.
void copy_chat_template(const std::filesystem::path& from, const std::filesystem::path& to);

/// Writes the tokens that a configuration gave a role into tokenizer_config.json and, of a whole model, the ids at
/// which generation stops into generation_config.json. Nothing if `choice` is empty.
void save_token_choice(const std::filesystem::path& directory, const TokenChoice& choice, const Tokenizer& tokenizer);

/// Gives the tokenizer in `to` the special tokens of the one in `from`, as far as both have a tokenizer_config.json.
void copy_special_tokens(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hone
