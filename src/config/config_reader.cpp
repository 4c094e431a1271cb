#include "config/config_reader.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "config/schema.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"

namespace hone {
namespace {

constexpr size_t kMaxFileBytes = 4u << 20;
constexpr int kMaxDepth = 32;
constexpr size_t kMaxNodes = 200'000;  // an alias (*x) repeats its subtree: limits the expansion of a small file

std::string at_line(const std::string& name, const YAML::Mark& mark) {
  return mark.is_null() ? name : fmt::format("{}:{}", name, mark.line + 1);
}

/// Converts yaml-cpp's tree to ConfigNode, with limits on depth and size.
class Converter {
 public:
  explicit Converter(const std::string& name, Variables variables = Variables::kExpand)
      : name_(name), variables_(variables) {}

  ConfigNode convert(const YAML::Node& yaml, int depth = 0) {
    ConfigNode node;
    node.where = at_line(name_, yaml.Mark());
    if (depth > kMaxDepth || ++nodes_ > kMaxNodes) {
      throw UserError("the configuration nests too deeply or repeats too much", node.where,
                      fmt::format("at most {} levels and {} values", kMaxDepth, kMaxNodes));
    }
    switch (yaml.Type()) {
      case YAML::NodeType::Scalar:
        scalar(yaml, node);
        break;
      case YAML::NodeType::Sequence:
        node.kind = ConfigNode::Kind::kSequence;
        for (const auto& item : yaml) node.items.push_back(convert(item, depth + 1));
        break;
      case YAML::NodeType::Map:
        mapping(yaml, node, depth);
        break;
      default:
        break;
    }
    return node;
  }

 private:
  void scalar(const YAML::Node& yaml, ConfigNode& node) {
    node.quoted = yaml.Tag() == "!";
    node.text = variables_ == Variables::kKeep ? yaml.Scalar() : expand_environment(yaml.Scalar(), node.where);
    const bool null = !node.quoted && (node.text.empty() || node.text == "~" || node.text == "null");
    node.kind = null ? ConfigNode::Kind::kNull : ConfigNode::Kind::kScalar;
  }

  void mapping(const YAML::Node& yaml, ConfigNode& node, int depth) {
    node.kind = ConfigNode::Kind::kMapping;
    for (const auto& member : yaml) {
      if (!member.first.IsScalar()) throw UserError("a key must be text", at_line(name_, member.first.Mark()));
      ConfigNode value = convert(member.second, depth + 1);
      value.where = at_line(name_, member.first.Mark());
      node.members.emplace_back(member.first.Scalar(), std::move(value));
    }
  }

  const std::string& name_;
  const Variables variables_;
  size_t nodes_ = 0;
};

/// Replaces tabs outside strings by spaces, since YAML forbids tabs as indentation. Line and column do not change.
std::string tabs_to_spaces(std::string text) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && text[i] == '\t') {
      text[i] = ' ';
    }
  }
  return text;
}

void check_json(const std::string& text, const std::string& name) {
  try {
    const Json checked = Json::parse(text);
  } catch (const Json::parse_error& error) {
    const size_t end = std::min(error.byte, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    throw UserError(fmt::format("this is not JSON: {}", error.what()), fmt::format("{}:{}", name, line));
  }
}

}  // namespace

ConfigNode ConfigNode::scalar(std::string text, std::string where) {
  ConfigNode node = empty(Kind::kScalar, std::move(where));
  node.text = std::move(text);
  return node;
}

ConfigNode ConfigNode::empty(Kind kind, std::string where) {
  ConfigNode node;
  node.kind = kind;
  node.where = std::move(where);
  return node;
}

std::vector<ConfigNode> ConfigNode::listed() const {
  return kind == Kind::kSequence ? items : std::vector<ConfigNode>{*this};
}

const ConfigNode* ConfigNode::find(std::string_view name) const {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const ConfigMember& member) { return member.name == name; });
  return found == members.end() ? nullptr : &found->value;
}

void ConfigNode::put(const std::string& name, const ConfigNode& value) {
  std::erase_if(members, [&](const ConfigMember& member) { return member.name == name; });
  members.emplace_back(name, value);
}

ConfigNode parse_config_text(const std::string& text, const std::string& name, bool json, Variables variables) {
  if (text.size() > kMaxFileBytes) throw UserError("the configuration is larger than 4 MiB", name);
  if (json) check_json(text, name);
  ConfigNode root;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(json ? tabs_to_spaces(text) : text);
    if (documents.size() > 1) {
      throw UserError("the file has more than one YAML document, and a configuration is one",
                      at_line(name, documents[1].Mark()), "remove the line --- and what does not belong here");
    }
    if (!documents.empty()) root = Converter(name, variables).convert(documents.front());
  } catch (const YAML::Exception& error) {
    throw UserError(fmt::format("this is not YAML: {}", error.msg), at_line(name, error.mark));
  }
  if (root.kind == ConfigNode::Kind::kNull) root.kind = ConfigNode::Kind::kMapping;
  if (root.kind != ConfigNode::Kind::kMapping) {
    throw UserError("a configuration is a mapping of keys to values", name + ":1",
                    "write lines of the form key: value");
  }
  return root;
}

ConfigNode read_config_file(const std::string& path, Variables variables) {
  if (path.ends_with(".sh") || path.ends_with(".py")) {
    throw UserError("this is a script, not a configuration", path,
                    fmt::format("hone convert-config {} writes a configuration for its training", path));
  }
  std::string text;
  try {
    text = read_whole_file(path, kMaxFileBytes, FileSource::kAlsoPipe);
  } catch (const UserError& error) {
    throw UserError(fmt::format("cannot read the configuration '{}': {}", path, error.message()), path,
                    "hone init MODEL_DIR writes one");
  }
  return parse_config_text(text, path, path.ends_with(".json"), variables);
}

ConfigNode parse_override_value(const std::string& text, const std::string& where) {
  ConfigNode node;
  const bool structured = !text.empty() && std::string_view("[{\"'").find(text[0]) != std::string_view::npos &&
                          !text.starts_with("{{") && !text.starts_with("{%");
  if (structured) {
    try {
      node = Converter(where).convert(YAML::Load(text));
    } catch (const YAML::Exception& error) {
      throw UserError(fmt::format("cannot read the value {}: {}", text, error.msg), where);
    }
  } else {
    node.text = expand_environment(text, where);
    const bool null = node.text.empty() || node.text == "~" || node.text == "null";
    node.kind = null ? ConfigNode::Kind::kNull : ConfigNode::Kind::kScalar;
  }
  node.where = where;
  return node;
}

std::string expand_environment(const std::string& text, const std::string& where) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    if (text.compare(i, 3, "$${") == 0) {
      result += "${";
      i += 3;
      continue;
    }
    const size_t end = text.compare(i, 2, "${") == 0 ? text.find('}', i) : std::string::npos;
    if (end == std::string::npos) {
      result += text[i++];
      continue;
    }
    std::string name = text.substr(i + 2, end - i - 2);
    std::string fallback;
    const size_t split = name.find(":-");
    if (split != std::string::npos) {
      fallback = name.substr(split + 2);
      name.resize(split);
    }
    const char* value = std::getenv(name.c_str());
    if (!value && split == std::string::npos) {
      throw UserError(fmt::format("the environment variable {} is not set", name), where,
                      fmt::format("set it, or write ${{{}:-DEFAULT}}", name));
    }
    result += value ? value : fallback;
    i = end + 1;
  }
  return result;
}

std::string known_environment(const std::string& text) {
  try {
    return expand_environment(text, "");
  } catch (const UserError&) {  // a variable is not set
    return text;
  }
}

bool parse_bool(std::string_view text, bool& value) {
  const std::string lower = in_lower_case(std::string(text));
  const bool yes = lower == "true" || lower == "yes" || lower == "on" || lower == "1";
  const bool no = lower == "false" || lower == "no" || lower == "off" || lower == "0";
  if (yes || no) value = yes;
  return yes || no;
}

bool parse_number(std::string_view written, double& value) {
  // 500_000 is a number in YAML 1.1 and in Python.
  std::string digits;
  for (size_t i = 0; i < written.size(); ++i) {
    const auto is_digit = [&](size_t at) { return at < written.size() && written[at] >= '0' && written[at] <= '9'; };
    if (written[i] != '_' || i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) digits += written[i];
  }
  std::string_view text = digits;
  if (text.starts_with('+')) text.remove_prefix(1);
  double parsed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(parsed)) return false;
  value = parsed;
  return true;
}

Json natural_json(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      return nullptr;
    case ConfigNode::Kind::kSequence: {
      Json list = Json::array();
      for (const auto& item : node.items) list.push_back(natural_json(item));
      return list;
    }
    case ConfigNode::Kind::kMapping: {
      Json object = Json::object();
      for (const auto& [name, value] : node.members) object[name] = natural_json(value);
      return object;
    }
    case ConfigNode::Kind::kScalar:
      break;
  }
  const std::string& text = node.text;
  if (node.quoted) return text;
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  int64_t integer = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), integer);
  if (error == std::errc() && end == text.data() + text.size()) return integer;
  double number = 0;
  return parse_number(text, number) ? Json(number) : Json(text);
}

std::string shown(const ConfigNode& node) {
  std::string text;
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      text = "null";
      break;
    case ConfigNode::Kind::kScalar:
      text = node.text;
      break;
    case ConfigNode::Kind::kSequence:
      for (const auto& item : node.items) text += (text.empty() ? "" : ", ") + shown(item);
      text = "[" + text + "]";
      break;
    case ConfigNode::Kind::kMapping:
      for (const auto& [name, value] : node.members) text += (text.empty() ? "" : ", ") + name + ": " + shown(value);
      text = "{" + text + "}";
      break;
  }
  constexpr size_t kLongest = 60;
  if (text.size() > kLongest) {
    size_t cut = kLongest;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    text = text.substr(0, cut) + "…";
  }
  return text;
}

namespace {

/// The key of an override's name such as `training.learning-rate`.
FoundKey key_of(std::string_view written) {
  const std::string path = config_name(std::string(written));
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return find_key(schema(), "", path);
  const std::string above = path.substr(0, dot);
  return find_key(schema(), above.substr(above.rfind('.') + 1), path.substr(dot + 1));
}

/// Whether `word` is NAME=value, where NAME could be a key.
bool is_assignment(std::string_view word) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos || equals == 0 || std::isdigit(static_cast<unsigned char>(word[0])))
    return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
}

/// Whether `word` is a configuration file, which may follow a key without effect.
bool is_config_name(std::string_view word) { return word.ends_with(".yaml") || word.ends_with(".yml"); }

bool is_switch(const FoundKey& found) {
  if (found.alias && found.alias->rewrite) return found.alias->rewrite.of_switch();
  return found.key->type == KeyType::kBool;
}

bool takes_text(const KeySpec& key) {
  return key.type == KeyType::kString || key.type == KeyType::kPath || key.type == KeyType::kStringList ||
         key.type == KeyType::kMapping || key.type == KeyType::kDatasets;
}

/// Throws for `--output_dir` without a value.
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
