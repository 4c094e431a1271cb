// Tokens that a configuration gives a role, in the place of those in the tokenizer's files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json_fwd.h"

namespace hone {

struct TokenChoice {
  std::optional<std::string> bos, eos, pad, unk;
  std::vector<std::string> eot;  ///< further tokens that end a turn, and generation

  /// special_tokens ({bos_token, eos_token, pad_token, unk_token: text}; null says nothing) and eot_tokens. Throws
  /// UserError at `where`: another name, a value that is not text.
  static TokenChoice parse(const Json& special_tokens, std::vector<std::string> eot_tokens, const std::string& where);

  bool empty() const { return !bos && !eos && !pad && !unk && eot.empty(); }
  /// Equal for choices that do the same.
  Json to_json() const;
  /// What to_json() wrote. Throws UserError at `where` for anything else.
  static TokenChoice from_json(Json json, const std::string& where);
};

}  // namespace hone
