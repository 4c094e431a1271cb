#include "config/config_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>

#include "core/base/contains.h"
#include "core/base/error.h"
#include "core/base/float_value.h"
#include "core/base/printable.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

/// The context of reading one value, for readers and errors.
struct Reading {
  const KeySpec& key;
  const ConfigNode& node;
  const std::string& written;
  const ConfigNode& stated;
};

/// The hint of an error about a value that the key does not take.
std::string way_out(const KeySpec& key) {
  const Json& usual = key.default_value;
  if (usual.is_null() || usual.is_structured()) {
    return fmt::format("correct the value, or leave {} out", key.name);
  }
  const std::string text = usual.is_string() ? usual.get<std::string>() : usual.dump();
  return fmt::format("correct the value, or leave {} out, which means {}", key.name, text);
}

[[noreturn]] void refuse(const Reading& r, const std::string& hint = {}) {
  throw UserError(fmt::format("{} is '{}': expected {}.{}", r.written, shown(r.node), expectation(r.key), hint),
                  r.node.where, way_out(r.key));
}

/// `meaning`: "dtype" or "dtype: float16" if `said` uses another name.
[[noreturn]] void throw_later(const KeySpec& key, const std::string& said, const std::string& meaning,
                              const std::string& where) {
  const std::string called = said.starts_with(key.name + ":") ? "" : fmt::format(" ({})", meaning);
  const std::string usual = key.choices.empty() ? "remove it" : fmt::format("use {}", fmt::join(key.choices, ", "));
  throw UserError(fmt::format("'{}'{} is known, not in this version.", said, called), where,
                  key.instead.empty() ? usual : key.instead);
}

bool is_unset(const KeySpec& key, const ConfigNode& node) {
  return node.kind == Kind::kNull ||
         (node.kind == Kind::kScalar && contains(key.unset_texts, in_lower_case(node.text)));
}

const std::string& scalar_text(const Reading& r) {
  if (r.node.kind != Kind::kScalar) refuse(r);
  return r.node.text;
}

Json read_bool(const Reading& r) {
  bool value = false;
  if (!parse_bool(scalar_text(r), value)) refuse(r);
  return value;
}

double read_number(const Reading& r) {
  double value = 0;
  if (r.node.quoted || !parse_number(scalar_text(r), value)) refuse(r);
  const Range& range = r.key.range;
  if (!range.holds(value)) refuse(r);
  if (r.key.type != KeyType::kNumber) return value;
  // Ops compute with the number in float32, where it may be the bound itself, or infinite.
  if (const auto used = static_cast<double>(as_float32(value)); !std::isfinite(used) || !range.holds(used)) {
    refuse(r, fmt::format(" It is computed with in float32, where this is {}", used));
  }
  return value;
}

Json read_integer(const Reading& r) {
  const double value = read_number(r);
  // Up to 2^53 every integer is a double, so text such as 1e6 is read exactly.
  if (value != std::floor(value) || std::abs(value) > 9007199254740992.0) refuse(r);
  return static_cast<int64_t>(value);
}

Json read_size(const Reading& r) {
  const std::string& text = scalar_text(r);
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit = in_lower_case(text.substr(std::min(text.find_first_not_of(' ', digits), text.size())));
  static const std::map<std::string, double> kUnits = {
      {"", 1},      {"b", 1},        {"kb", 1e3},     {"mb", 1e6},     {"gb", 1e9},
      {"tb", 1e12}, {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40},
  };
  double value = 0;
  const auto scale = kUnits.find(unit);
  if (scale == kUnits.end() || !parse_number(text.substr(0, digits), value)) refuse(r);
  const double bytes = value * scale->second;
  if (bytes < 1 || bytes > 0x1p62) refuse(r);
  return static_cast<int64_t>(bytes);
}

Json read_path(const Reading& r) {
  const std::string& text = scalar_text(r);
  const char* home = text.starts_with("~/") ? std::getenv("HOME") : nullptr;
  return home ? home + text.substr(1) : text;
}

/// The canonical spelling of a choice in any case, with dashes, or in another tool's spelling.
std::string spelled_choice(const KeySpec& key, const std::string& text) {
  const auto canonical = [&](const std::string& word) {
    const auto other = key.choice_aliases.find(word);
    return other == key.choice_aliases.end() ? word : other->second;
  };
  const auto known = [&](const std::string& word) { return key.is_choice(word) || contains(key.later_choices, word); };
  const std::string word = canonical(in_lower_case(text));
  if (known(word)) return word;
  std::string underscored = in_lower_case(text);
  std::replace(underscored.begin(), underscored.end(), '-', '_');
  return canonical(underscored);
}

std::string read_choice(const Reading& r, const std::string& text) {
  const std::string word = spelled_choice(r.key, text);
  if (contains(r.key.later_choices, word)) {
    const std::string meaning = shown(r.node) == shown(r.stated) ? r.key.name : fmt::format("{}: {}", r.key.name, word);
    throw_later(r.key, said(r.written, r.stated), meaning, r.node.where);
  }
  const bool nothing = word.empty() && !text.empty();  // "none" in a list
  if (!r.key.is_choice(word) && !nothing) refuse(r, did_you_mean(word, r.key.choices));
  return word;
}

/// One item of a list: a choice if the key has choices, else any text.
std::string read_item(const Reading& r, const std::string& text) {
  if (!r.key.choices.empty()) return read_choice(r, text);
  const auto spelled = r.key.choice_aliases.find(text);
  return spelled == r.key.choice_aliases.end() ? text : spelled->second;
}

std::vector<std::string> split_at_commas(const std::string& text) {
  if (text.starts_with("re:")) return {text};
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t first = text.find_first_not_of(' ', begin);
    const size_t last = text.find_last_not_of(' ', end == 0 ? 0 : end - 1);
    if (first < end) parts.push_back(text.substr(first, last - first + 1));
    begin = end + 1;
  }
  return parts;
}

Json read_list(const Reading& r) {
  Json list = Json::array();
  const auto add = [&](const std::string& text) {
    const std::string item = read_item(r, text);
    if (!item.empty()) list.push_back(item);
  };
  if (r.node.kind == Kind::kMapping) refuse(r);
  if (r.node.kind == Kind::kScalar) {
    for (const std::string& part : split_at_commas(r.node.text)) add(part);
  }
  for (const ConfigNode& item : r.node.items) {
    if (item.kind != Kind::kScalar) refuse(r);
    add(item.text);
  }
  return list;
}

Json read_mapping(const Reading& r) {
  if (r.node.kind == Kind::kMapping) return natural_json(r.node);
  const Json parsed = r.node.kind == Kind::kScalar ? Json::parse(r.node.text, nullptr, false) : Json();
  if (!parsed.is_object()) refuse(r);
  return parsed;
}

/// The entry of a path; "data/chat.jsonl#200" means the first 200 samples.
Json entry_of_path(const Reading& r) {
  std::string path = read_path(r);
  Json entry = Json::object();
  const size_t hash = path.rfind('#');
  const bool counted = hash != std::string::npos && hash + 1 < path.size() && path.size() - hash <= 16 &&
                       path.find_first_not_of("0123456789", hash + 1) == std::string::npos;
  if (counted) {
    entry["samples"] = std::stoll(path.substr(hash + 1));
    if (entry["samples"] == 0) refuse(r);
    path.resize(hash);
  }
  if (path.empty()) refuse(r);
  entry["path"] = path;
  return entry;
}

/// Adds a member to an entry of datasets; mappings are merged.
void add_member(const Reading& r, Json& entry, const std::string& name, const Json& content, const std::string& where) {
  const auto found = entry.find(name);
  if (found == entry.end()) {
    entry[name] = content;
    return;
  }
  if (found->is_object() && content.is_object()) {
    for (const auto& [member, value] : content.items()) add_member(r, *found, member, value, where);
    return;
  }
  if (*found == content) return;
  throw UserError(fmt::format("an entry of {} states {} twice with different values", r.written, name), where,
                  "keep one of them");
}

Json read_entry(const Reading& r) {
  if (r.node.kind == Kind::kScalar) return entry_of_path(r);
  if (r.node.kind != Kind::kMapping) refuse(r);
  Json entry = Json::object();
  for (const auto& [name, value] : r.node.members) {
    const FoundKey found = find_key(dataset_schema(), "", name);
    const KeySpec* key = found.key;
    const std::string written = fmt::format("{}.{}", r.written, name);
    if (!key) {
      throw UserError(fmt::format("an entry of {} has no key '{}'.{}", r.written, name,
                                  did_you_mean(name, writable_names(dataset_schema()))),
                      value.where);
    }
    if (key->status == KeyStatus::kLater) check_later(*key, value, said(written, value));
    if (key->status != KeyStatus::kSupported) continue;
    const bool rewritten = found.alias && found.alias->rewrite;
    const ConfigNode meant = rewritten ? found.alias->rewrite(value).value : value;
    const std::optional<Json> said =
        key->name == "path" ? entry_of_path({*key, meant, written, meant}) : parse_value(*key, meant, written);
    if (!said) continue;
    const Json members = key->name == "path" ? *said : Json{{key->name, *said}};
    for (const auto& [member, content] : members.items()) add_member(r, entry, member, content, value.where);
  }
  if (!entry.contains("path")) throw UserError(fmt::format("an entry of {} has no path", r.written), r.node.where);
  return entry;
}

Json read_datasets(const Reading& r) {
  Json list = Json::array();
  if (r.node.kind != Kind::kSequence) {
    list.push_back(read_entry(r));
  }
  for (const ConfigNode& item : r.node.items) list.push_back(read_entry({r.key, item, r.written, item}));
  return list;
}

Json read_typed(const Reading& r) {
  switch (r.key.type) {
    case KeyType::kBool:
      return read_bool(r);
    case KeyType::kInteger:
      return read_integer(r);
    case KeyType::kNumber:
      return read_number(r);
    case KeyType::kSize:
      return read_size(r);
    case KeyType::kString:
      return scalar_text(r);
    case KeyType::kPath:
      return read_path(r);
    case KeyType::kChoice:
      return read_choice(r, scalar_text(r));
    case KeyType::kStringList:
      return read_list(r);
    case KeyType::kMapping:
      return read_mapping(r);
    case KeyType::kNamed:
      return r.node.kind == Kind::kMapping || r.node.text.starts_with('{') ? read_mapping(r) : Json(scalar_text(r));
    case KeyType::kDatasets:
      return read_datasets(r);
  }
  return nullptr;
}

}  // namespace

std::optional<Json> parse_value(const KeySpec& key, const ConfigNode& node, const std::string& written,
                                const ConfigNode& stated) {
  if (is_unset(key, node)) return key.nullable ? std::optional<Json>(nullptr) : std::nullopt;
  return read_typed({key, node, written, stated});
}

void check_later(const KeySpec& key, const ConfigNode& node, const std::string& said) {
  const Json value = natural_json(node);
  const bool off = value.is_null() || value == false || value == "" || value == "none" || value == "no" ||
                   ((value.is_array() || value.is_object()) && value.empty());
  const bool zero = value.is_number() && value == 0;
  const bool neutral = !key.default_value.is_null() && value == key.default_value;
  if (!off && !zero && !neutral && !is_unset(key, node)) throw_later(key, said, key.name, node.where);
}

std::string said(const std::string& written, const ConfigNode& node) {
  return fmt::format("{}: {}", written, shown(node));
}

namespace {

[[noreturn]] void refuse_two(const Statement& first, const Statement& second) {
  throw UserError(fmt::format("{} is stated twice with different values: '{}' ({}) and '{}' ({})", first.key->name,
                              first.said, first.where, second.said, second.where),
                  second.where, "keep one of them");
}

/// Whether `later` has precedence over a different `earlier`.
bool replaces(const Statement& later, const Statement& earlier) {
  return later.from_command_line && (!earlier.from_command_line || later.written == earlier.written);
}

/// Merges mappings. A member stated twice must agree, unless the later statement replaces the earlier.
Statement merged(const std::vector<Statement>& all) {
  Statement result = all.front();
  std::map<std::string, const Statement*> by;
  for (const Statement& other : all) {
    for (const auto& [name, value] : other.value.items()) {
      const Statement*& last = by[name];
      const bool differs = last && result.value[name] != value;
      if (differs && !replaces(other, *last)) refuse_two(*last, other);
      result.value[name] = value;
      last = &other;
    }
  }
  return result;
}

/// The statements of the command line if there are any, the last one of each name; else all.
std::vector<Statement> that_count(const std::vector<Statement>& all) {
  std::vector<Statement> kept;
  for (const Statement& statement : all) {
    std::erase_if(kept, [&](const Statement& earlier) { return replaces(statement, earlier); });
    if (statement.from_command_line || kept.empty() || !kept.back().from_command_line) kept.push_back(statement);
  }
  return kept;
}

/// A statement with the items of all lists, without repetitions.
Statement united(const std::vector<Statement>& all) {
  Statement whole = all.front();
  for (const Statement& other : all) {
    for (const Json& item : other.value) {
      if (std::find(whole.value.begin(), whole.value.end(), item) == whole.value.end()) whole.value.push_back(item);
    }
  }
  return whole;
}

}  // namespace

std::optional<Statement> read_statement(const FoundKey& found, const std::string& written, const ConfigNode& value) {
  const KeySpec* key = found.key;
  if (key->status == KeyStatus::kNoEffect) {
    if (value.kind == Kind::kScalar && contains(key->later_choices, in_lower_case(value.text))) {
      throw_later(*key, said(written, value), key->name, value.where);
    }
    return std::nullopt;
  }
  Rewritten meant{value};
  if (found.alias && found.alias->rewrite) meant = found.alias->rewrite(value);
  if (meant.emphasis == Emphasis::kNothing) return std::nullopt;
  if (key->status == KeyStatus::kLater) {
    check_later(*key, meant.value, said(written, value));
    return std::nullopt;
  }
  if (key->redirect && meant.value.kind == ConfigNode::Kind::kScalar) {
    const std::string other = key->redirect(meant.value);
    if (!other.empty()) key = &key_spec(other);
  }
  if (key->rewrite) meant.value = key->rewrite(meant.value).value;
  const std::optional<Json> parsed = parse_value(*key, meant.value, written, value);
  if (!parsed) return std::nullopt;
  if (parsed->is_null()) meant.emphasis = Emphasis::kWeak;  // max_steps: -1 yields to train_steps: 100
  return Statement{key, *parsed, meant.emphasis, said(written, value), shown(meant.value), value.where, written, false};
}

Statement chosen_statement(const std::vector<Statement>& stated) {
  if (stated.front().key->type == KeyType::kMapping) return merged(stated);
  const std::vector<Statement> all = that_count(stated);
  if (stated.front().key->adds_up) return united(all);
  const auto strongest = std::max_element(
      all.begin(), all.end(), [](const Statement& a, const Statement& b) { return a.emphasis < b.emphasis; });
  for (const Statement& other : all) {
    if (other.emphasis == strongest->emphasis && other.value != strongest->value) refuse_two(*strongest, other);
  }
  return *strongest;
}

}  // namespace hone
