#include "config/resolved_yaml.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/output_name.h"
#include "config/schema.h"
#include "core/base/printable.h"
#include "core/base/program.h"
#include "core/text/json.h"

namespace hone {
namespace {

/// Whether any version of YAML reads the unquoted text as text.
bool is_plain(const std::string& text) {
  static const char* const kReserved[] = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "none"};
  const auto safe = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '/' || c == '.' || c == '-'; };
  const std::string lower = in_lower_case(text);
  return !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/') &&
         std::all_of(text.begin(), text.end(), safe) &&
         std::find(std::begin(kReserved), std::end(kReserved), lower) == std::end(kReserved);
}

/// The text as a JSON string, which is also YAML, with ${ escaped.
std::string yaml_text(std::string text) {
  for (size_t at = 0; (at = text.find("${", at)) != std::string::npos; at += 3) text.insert(at, "$$").erase(at + 2, 1);
  return is_plain(text) ? text : Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string yaml_value(const Json& value) {
  std::string text;
  if (value.is_string()) return yaml_text(value.get<std::string>());
  if (value.is_array()) {
    for (const Json& item : value) text += (text.empty() ? "" : ", ") + yaml_value(item);
    return "[" + text + "]";
  }
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      text += (text.empty() ? "" : ", ") + yaml_text(name) + ": " + yaml_value(member);
    }
    return "{" + text + "}";
  }
  return value.dump();
}

/// A value as YAML. The choices true and false are not quoted.
std::string key_value(const KeySpec& key, const Json& value) {
  if (value == "true" || value == "false") return value.get<std::string>();
  if (key.type != KeyType::kDatasets || value.empty()) return yaml_value(value);
  std::string lines;
  for (const Json& entry : value) lines += "\n  - " + yaml_value(entry);
  return lines;
}

}  // namespace

std::string yaml_line(const KeySpec& key, const Json& value) {
  const size_t dot = key.name.find('.');
  if (dot != std::string::npos) {
    return fmt::format("{}: {{{}: {}}}\n", key.name.substr(0, dot), key.name.substr(dot + 1), key_value(key, value));
  }
  const std::string text = key_value(key, value);
  return fmt::format("{}:{}{}\n", key.name, text.starts_with('\n') ? "" : " ", text);
}

std::string resolved_yaml(const RunConfig& run) {
  std::string text = fmt::format("# The whole configuration of a run of hone {}; it runs again as it is.\n", version());
  std::string group, section;
  for (const KeySpec& key : schema()) {
    if (!key.load) continue;
    if (key.group != group) text += fmt::format("\n# {}\n", group = key.group);
    const size_t dot = key.name.find('.');
    const std::string inside = dot == std::string::npos ? "" : key.name.substr(0, dot);
    if (inside != section && !inside.empty()) text += inside + ":\n";
    section = inside;
    const std::string name = dot == std::string::npos ? key.name : "  " + key.name.substr(dot + 1);
    Json loaded = key.load(run);
    if (key.name == "output_dir") loaded = with_literal_braces(run.report.output_dir);
    const std::string value = key_value(key, loaded);
    text += fmt::format("{}:{}{}\n", name, value.starts_with('\n') ? "" : " ", value);
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> resolved_pairs(const RunConfig& run) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const KeySpec& key : schema()) {
    const Json value = key.load ? key.load(run) : Json();
    if (value.is_null()) continue;
    pairs.emplace_back(key.name, value.is_string() ? value.get<std::string>()
                                                   : value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return pairs;
}

}  // namespace hone
