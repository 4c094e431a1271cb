// Reads configuration text (YAML, JSON, command line) into a tree that records the place of each value. Keys are
// interpreted in resolve.h.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

struct ConfigMember;

/// One value of a configuration, with its place. Scalars are text; the schema determines their types.
struct ConfigNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };

  Kind kind = Kind::kNull;
  std::string text;                   ///< kScalar, after ${ENV} expansion
  bool quoted = false;                ///< kScalar: written in quotes, so never null, a number or a boolean
  std::vector<ConfigNode> items;      ///< kSequence
  std::vector<ConfigMember> members;  ///< kMapping, in the order of the file, with repeated names
  std::string where;                  ///< "run.yaml:12", "command line: lr=1e-4"

  /// A scalar with this text, read at `where`.
  static ConfigNode scalar(std::string text, std::string where);
  /// A null, or a list or mapping without anything in it.
  static ConfigNode empty(Kind kind, std::string where);

  /// The items of a list; of anything else, it alone.
  std::vector<ConfigNode> listed() const;
  /// The member called `name`, or nullptr.
  const ConfigNode* find(std::string_view name) const;
  /// Replaces all members called `name` by one with `value`, at the end.
  void put(const std::string& name, const ConfigNode& value);
};

struct ConfigMember {
  ConfigMember(std::string key, ConfigNode node) : name(std::move(key)), value(std::move(node)) {}

  std::string name;
  ConfigNode value;
};

/// What becomes of ${NAME} in a file.
enum class Variables {
  kExpand,  ///< expand_environment()
  kKeep,    ///< it stays as it is written
};

/// Reads a .yaml, .yml or .json file of at most 4 MiB. Throws UserError (file:line) if it cannot be read or parsed, is
/// not a mapping, or uses an environment variable that is not set.
ConfigNode read_config_file(const std::string& path, Variables variables = Variables::kExpand);

/// The same from text. `name` is the file's name in messages. With `json`, the text must be valid JSON.
ConfigNode parse_config_text(const std::string& text, const std::string& name, bool json = false,
                             Variables variables = Variables::kExpand);

/// A value of the command line: text, or YAML if it is in brackets, braces or quotes. Throws UserError at `where`.
ConfigNode parse_override_value(const std::string& text, const std::string& where);

/// Replaces ${NAME} by the environment variable, ${NAME:-default} by the variable or the default, and $${ by ${. Throws
/// UserError at `where` if a variable is not set and has no default.
std::string expand_environment(const std::string& text, const std::string& where);

/// The same, but a text with a variable that is not set and has no default stays as it is.
std::string known_environment(const std::string& text);

/// The value with the types of YAML, without the schema: null, true/false, numbers, text, lists, mappings.
Json natural_json(const ConfigNode& node);

/// The value for messages: `0.5`, `[a, b]`, `{k: v}`; truncated to about 60 characters.
std::string shown(const ConfigNode& node);

/// Parses true/false, yes/no, on/off, 1/0 in any case. Returns false for other text.
bool parse_bool(std::string_view text, bool& value);

/// Parses a finite decimal number; returns false if `text` is anything else.
bool parse_number(std::string_view text, double& value);

// Overrides of the command line as a configuration.

/// Whether `word`, which follows `--NAME`, is the value of that key. A key with text takes any word except another
/// `--key`; a boolean key takes only true or false; other keys take any word except `name=value`.
bool takes_word(std::string_view name, std::string_view word);

/// Parses `key=value`, `--key=value`, `--key value`, `--key-with-dashes value`; `--flag` without a value is true;
/// `section.key=value` is nested. A value in brackets, braces or quotes is YAML. Returns one mapping. Throws UserError
/// for a word without a key, and for a missing value of a key with text.
ConfigNode parse_overrides(const std::vector<std::string>& arguments);

/// Removes from `overrides` the keys that `others` state under any name: an option of a verb has precedence over an
/// override.
std::vector<std::string> without_keys_of(const std::vector<std::string>& overrides,
                                         const std::vector<std::string>& others);

}  // namespace hone
