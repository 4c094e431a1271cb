// Reads one value of a configuration as the type that the schema gives its key.
#pragma once

#include <optional>
#include <string>

#include "app/config/schema.h"

namespace hone {

/// The value of `node` for `key` as Json of the key's type: null (unset), bool, integer, number, text, list of texts,
/// mapping, or list of data set entries {path, type, samples?, name?}. `written` is the name the user wrote.
/// std::nullopt: the value says nothing (null or one of unset_texts, for a key without null).
/// Throws UserError with file:line, what was found and what was expected; or "known, not in this version", of `stated`:
/// what the user wrote, where `node` is what that means.
std::optional<Json> parse_value(const KeySpec& key, const ConfigNode& node, const std::string& written,
                                const ConfigNode& stated);
inline std::optional<Json> parse_value(const KeySpec& key, const ConfigNode& node, const std::string& written) {
  return parse_value(key, node, written, node);
}

/// Refuses a value of a kLater key, written as `said` ("zero_stage: 1"), unless it only says that the feature is off.
void check_later(const KeySpec& key, const ConfigNode& node, const std::string& said);

/// What was written, for messages: "lr: 1e-4".
std::string said(const std::string& written, const ConfigNode& node);

}  // namespace hone
