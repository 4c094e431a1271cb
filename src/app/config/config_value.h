// The values of a configuration: one as the type that the schema gives its key, and which of several lines counts.
#pragma once

#include <optional>
#include <string>
#include <vector>

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

// What one line of a configuration says about a key, and which of several lines counts.

/// One line, read: its key under the canonical name and its value as the key's type.
struct Statement {
  const KeySpec* key = nullptr;
  Json value;
  Emphasis emphasis = Emphasis::kPlain;
  std::string said;   ///< "lr: 1e-4", as written
  std::string meant;  ///< the value under the canonical name, as a person would write it
  std::string where;
  std::string written;  ///< the name alone
  bool from_command_line = false;
};

/// What `value`, written under the name `written` that means `found`, says. std::nullopt: nothing, such as a switch of
/// another tool that is off. Throws UserError for a value that the key does not take or that is not in this version.
/// Keys without effect say nothing; whoever reads them tells the user why (KeySpec::help).
std::optional<Statement> read_statement(const FoundKey& found, const std::string& written, const ConfigNode& value);

/// The statement that counts among those about one key (at least one): mappings add up, the command line wins over the
/// file, else the most emphatic counts. Of one name that is written twice on the command line the last counts. Throws
/// UserError if two of the same emphasis differ.
Statement chosen_statement(const std::vector<Statement>& all);

}  // namespace hone
