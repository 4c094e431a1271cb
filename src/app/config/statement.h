// What one line of a configuration says about a key, and which of several lines counts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/config/schema.h"

namespace hone {

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
