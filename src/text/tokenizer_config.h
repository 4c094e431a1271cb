// The files next to tokenizer.json: special tokens, the chat template, the ids that end generation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text/json_fwd.h"
#include "text/added_tokens.h"

namespace hone {

/// The contents of tokenizer_config.json, special_tokens_map.json, generation_config.json and chat_template.jinja;
/// members of absent files are empty.
struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token, pad_token, unk_token;
  /// Templates by name; the default one is "default".
  std::vector<std::pair<std::string, std::string>> chat_templates;
  std::optional<int32_t> generation_bos_id, generation_pad_id;
  std::vector<int32_t> generation_eos_ids;
  TokensBeside beside;
};

/// Reads the files of a model directory. tokenizer_config.json takes precedence over special_tokens_map.json, and
/// chat_template.jinja over a template in tokenizer_config.json. As in transformers, added_tokens.json and the further
/// tokens of special_tokens_map.json count only without added_tokens_decoder in tokenizer_config.json. Malformed files
/// are UserErrors with file and key.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& directory);

// Special tokens of a configuration, which replace those of the tokenizer's files.

struct TokenChoice {
  std::optional<std::string> bos, eos, pad, unk;
  std::vector<std::string> eot;  ///< additional tokens that end a turn, and generation

  /// Parses special_tokens ({bos_token, eos_token, pad_token, unk_token: text}; null keeps the file's token) and
  /// eot_tokens. Throws UserError at `where` for any other name, or a value that is not text.
  static TokenChoice parse(const Json& special_tokens, std::vector<std::string> eot_tokens, const std::string& where);

  bool empty() const { return !bos && !eos && !pad && !unk && eot.empty(); }
  /// Equal for equivalent choices.
  Json to_json() const;
  /// Parses the output of to_json(). Throws UserError at `where` for anything else.
  static TokenChoice from_json(Json json, const std::string& where);
};

/// Tokens that a run adds to a tokenizer, the plain ones first; those that it has are left as they are.
struct NewTokens {
  std::vector<std::string> plain, special;

  bool empty() const { return plain.empty() && special.empty(); }
  /// {"plain": [...], "special": [...]}
  Json to_json() const;
};

}  // namespace hone
