// Reads configuration text into a tree that remembers where each value was written.
//
// YAML and JSON files. Nothing here knows a key: that is the part of resolve.h.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json_fwd.h"

namespace hone {

struct ConfigMember;

/// One value of a configuration, with its place. Scalars stay text: the schema decides what they mean.
struct ConfigNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };

  Kind kind = Kind::kNull;
  std::string text;                   ///< kScalar, after ${ENV} expansion
  bool quoted = false;                ///< kScalar: written in quotes, so never null, a number or a boolean
  std::vector<ConfigNode> items;      ///< kSequence
  std::vector<ConfigMember> members;  ///< kMapping, in the order of the file, repeats kept
  std::string where;                  ///< "run.yaml:12", "command line: lr=1e-4"

  /// The member called `name`, or nullptr.
  const ConfigNode* find(std::string_view name) const;
  /// Makes `value` the last and only member of that name.
  void put(const std::string& name, const ConfigNode& value);
};

struct ConfigMember {
  ConfigMember(std::string key, ConfigNode node) : name(std::move(key)), value(std::move(node)) {}

  std::string name;
  ConfigNode value;
};

/// Reads a .yaml, .yml or .json file of at most 4 MiB. Throws UserError (file:line) if it cannot be read or parsed, is
/// not a mapping at the top, or names an environment variable that is not set.
ConfigNode read_config_file(const std::string& path);

/// Same, from text; `name` stands for the file in messages. JSON is checked as JSON first if `json`.
ConfigNode parse_config_text(const std::string& text, const std::string& name, bool json = false);

/// A value of the command line: text, or YAML where it is in brackets, braces or quotes. Throws UserError at `where`.
ConfigNode parse_override_value(const std::string& text, const std::string& where);

/// `text` with ${NAME} replaced by the environment variable and ${NAME:-default} by it or the default; $${ writes ${.
/// Throws UserError at `where` if the variable is not set and has no default.
std::string expand_environment(const std::string& text, const std::string& where);

/// What the value says by itself, as YAML reads it: null, true/false, numbers, text, lists, mappings.
Json natural_json(const ConfigNode& node);

/// The value as a person would write it, for messages: `0.5`, `[a, b]`, `{k: v}`; shortened to about 60 characters.
std::string shown(const ConfigNode& node);

/// true/false, yes/no, on/off, 1/0 in any case; false if `text` is none of them.
bool parse_bool(std::string_view text, bool& value);

/// A finite decimal number that fills the whole text; false otherwise.
bool parse_number(std::string_view text, double& value);

// Overrides of the command line: which words belong together, and what they say as a configuration.

/// Whether `word`, which follows `--NAME`, is the value of that key. A key that takes text takes any word but another
/// `--key`; one that takes true or false takes these alone; every other one leaves `name=value` to be read by itself.
bool takes_word(std::string_view name, std::string_view word);

/// `key=value`, `--key=value`, `--key value`, `--key-with-dashes value`; `--flag` alone says true; `section.key=value`
/// nests. A value in brackets, braces or quotes is read as YAML. Returns one mapping. Throws UserError for a word that
/// belongs to no key, and for a key that takes text and has none.
ConfigNode parse_overrides(const std::vector<std::string>& arguments);

/// `overrides` without the words about the keys that `others` state, under whatever name: an option of a verb that says
/// the same counts instead of them.
std::vector<std::string> without_keys_of(const std::vector<std::string>& overrides,
                                         const std::vector<std::string>& others);

}  // namespace hone
