// Values of a configuration: converts a value to its key's type, and selects one of several statements about a key.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/schema.h"
#include "core/text/json.h"

namespace hone {

/// The value of `node` for `key` as Json of the key's type: null (unset), bool, integer, number, text, list of texts,
/// mapping, or list of data set entries {path, type, samples?, name?}. `written` is the name the user wrote.
/// std::nullopt: the value states nothing (null or one of unset_texts, for a key without null).
/// Throws UserError with file:line, the value and what was expected; or "known, not in this version". `stated` is the
/// value that the user wrote, `node` its meaning after an alias rule.
std::optional<Json> parse_value(const KeySpec& key, const ConfigNode& node, const std::string& written,
                                const ConfigNode& stated);
inline std::optional<Json> parse_value(const KeySpec& key, const ConfigNode& node, const std::string& written) {
  return parse_value(key, node, written, node);
}

/// Refuses a value of a kLater key, written as `said` ("zero_stage: 1"), unless it disables the feature.
void check_later(const KeySpec& key, const ConfigNode& node, const std::string& said);

/// The statement as written, for messages: "lr: 1e-4".
std::string said(const std::string& written, const ConfigNode& node);

// Statements: the meaning of one line of a configuration, and the selection among several.

/// One line after reading: its key under the canonical name, and its value as the key's type.
struct Statement {
  const KeySpec* key = nullptr;
  Json value;
  Emphasis emphasis = Emphasis::kPlain;
  std::string said;   ///< "lr: 1e-4", as written
  std::string meant;  ///< the value under the canonical name, for messages
  std::string where;
  std::string written;  ///< the name as written
  bool from_command_line = false;
};

/// The statement of `value` under the name `written`, which means `found`. std::nullopt: it states nothing, such as a
/// disabled switch of another tool or a key without effect (KeySpec::help has the reason). Throws UserError for a value
/// that the key does not take or that is not in this version.
std::optional<Statement> read_statement(const FoundKey& found, const std::string& written, const ConfigNode& value);

/// Selects among the statements about one key (at least one): mappings are merged, the command line has precedence over
/// the file, then the strongest emphasis. Of a name that is repeated on the command line, the last one is used. Throws
/// UserError if two statements of the same emphasis differ.
Statement chosen_statement(const std::vector<Statement>& all);

}  // namespace hone
