// Saves tokenizer and chat template with a model or adapter, so that it is served with the ones it was trained with.
#pragma once

#include <filesystem>
#include <string>

#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace hone {

/// Copies tokenizer.json, its configuration and its chat template, those that exist in `from`.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Replaces the tokenizer files in `to` by those of `from`; files that `from` lacks are removed.
void replace_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes `chat_template` (Jinja) the only template of the tokenizer in `directory`: writes chat_template.jinja, and
/// removes the templates in tokenizer_config.json, where one for tools would take precedence.
void save_chat_template(const std::filesystem::path& directory, const std::string& chat_template);

/// Calls save_chat_template with the chat_template.jinja of `from`, if there is one.
void copy_chat_template(const std::filesystem::path& from, const std::filesystem::path& to);

/// Writes configured special tokens into tokenizer_config.json and, for a full model, the ids that end generation into
/// generation_config.json. Does nothing if `choice` is empty.
void save_token_choice(const std::filesystem::path& directory, const TokenChoice& choice, const Tokenizer& tokenizer);

/// Writes the added tokens of `tokenizer` that tokenizer.json of `directory` lacks into it and into
/// tokenizer_config.json, in the order of their ids: those of the run, and before them those that only
/// tokenizer_config.json had, since a reader numbers the tokens of tokenizer.json first.
void save_added_tokens(const std::filesystem::path& directory, const Tokenizer& tokenizer);

/// Has config.json of a model's folder say that its embedding has `rows` rows.
void write_config_vocab_size(const std::filesystem::path& directory, int64_t rows);

/// Copies the special tokens of `from`'s tokenizer_config.json to `to`'s, if both exist.
void copy_special_tokens(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hone
