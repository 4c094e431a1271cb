#include "app/config/overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "app/config/schema.h"
#include "core/error.h"

namespace hone {
namespace {

/// The key of `training.learning-rate`, as it is written behind the dashes.
FoundKey key_of(std::string_view written) {
  const std::string path = config_name(std::string(written));
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return find_key(schema(), "", path);
  const std::string above = path.substr(0, dot);
  return find_key(schema(), above.substr(above.rfind('.') + 1), path.substr(dot + 1));
}

/// NAME=value, where NAME could be a key.
bool is_assignment(std::string_view word) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos || equals == 0 || std::isdigit(static_cast<unsigned char>(word[0])))
    return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
}

/// The name of a configuration, which comes first where a key without effect stands before it.
bool is_config_name(std::string_view word) { return word.ends_with(".yaml") || word.ends_with(".yml"); }

bool is_switch(const FoundKey& found) {
  if (found.alias && found.alias->rewrite) return found.alias->rewrite.of_switch();
  return found.key->type == KeyType::kBool;
}

bool takes_text(const KeySpec& key) {
  return key.type == KeyType::kString || key.type == KeyType::kPath || key.type == KeyType::kStringList ||
         key.type == KeyType::kMapping || key.type == KeyType::kDatasets;
}

/// `--output_dir` with nothing behind it.
void require_value(const std::string& name, const std::string& argument) {
  const FoundKey found = key_of(name);
  if (!found.key || found.key->status != KeyStatus::kSupported || found.key->rewrite) return;
  if (found.alias && found.alias->rewrite) return;
  if (found.key->type != KeyType::kString && found.key->type != KeyType::kPath) return;
  throw UserError(fmt::format("{} has no value: expected {}", argument, expectation(*found.key)), "command line",
                  fmt::format("write {}=VALUE", argument));
}

void add_override(ConfigNode& root, const std::string& path, const std::string& value, const std::string& where) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  if (std::find(parts.begin(), parts.end(), "") != parts.end()) {
    throw UserError(fmt::format("'{}' is not a key", path), where, "write key=value or --key value");
  }
  ConfigNode node = parse_override_value(value, where);
  for (size_t i = parts.size(); i-- > 1;) {
    ConfigNode section;
    section.kind = ConfigNode::Kind::kMapping;
    section.where = where;
    section.members.emplace_back(parts[i], std::move(node));
    node = std::move(section);
  }
  root.members.emplace_back(parts[0], std::move(node));
}

}  // namespace

bool takes_word(std::string_view name, std::string_view word) {
  if (word.starts_with("--")) return false;
  const FoundKey found = key_of(name);
  if (!found.key) return !is_assignment(word);
  if (found.key->status == KeyStatus::kNoEffect) return !is_assignment(word) && !is_config_name(word);
  bool unused = false;
  if (is_switch(found)) return parse_bool(word, unused);
  return takes_text(*found.key) || !is_assignment(word);
}

ConfigNode parse_overrides(const std::vector<std::string>& arguments) {
  ConfigNode root;
  root.kind = ConfigNode::Kind::kMapping;
  root.where = "command line";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const bool dashed = argument.starts_with("--");
    const std::string body = dashed ? argument.substr(2) : argument;
    const size_t equals = body.find('=');
    if (equals != std::string::npos) {
      add_override(root, body.substr(0, equals), body.substr(equals + 1), "command line: " + argument);
    } else if (!dashed) {
      throw UserError(fmt::format("'{}' is not an override", argument), "command line",
                      "write key=value, --key value or --key=value");
    } else if (i + 1 < arguments.size() && takes_word(body, arguments[i + 1])) {
      add_override(root, body, arguments[i + 1], fmt::format("command line: {} {}", argument, arguments[i + 1]));
      ++i;
    } else {
      require_value(body, argument);
      add_override(root, body, "true", "command line: " + argument);
    }
  }
  return root;
}

std::vector<std::string> without_keys_of(const std::vector<std::string>& overrides,
                                         const std::vector<std::string>& others) {
  const auto key_in = [](const std::string& word) {
    const std::string body = word.substr(word.starts_with("--") ? 2 : 0);
    return key_of(body.substr(0, body.find('='))).key;
  };
  std::vector<std::string> kept;
  for (size_t i = 0; i < overrides.size(); ++i) {
    const std::string& word = overrides[i];
    const KeySpec* key = key_in(word);
    const bool stated = key && std::any_of(others.begin(), others.end(),
                                           [&](const std::string& other) { return key_in(other) == key; });
    const bool with_next = word.starts_with("--") && word.find('=') == std::string::npos && i + 1 < overrides.size() &&
                           takes_word(std::string_view(word).substr(2), overrides[i + 1]);
    if (!stated) kept.push_back(word);
    if (with_next && !stated) kept.push_back(overrides[i + 1]);
    i += with_next ? 1 : 0;
  }
  return kept;
}

}  // namespace hone
