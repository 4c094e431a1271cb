#include "config/schema_docs.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/inline_code.h"
#include "config/presets.h"
#include "config/schema.h"

namespace hone {
namespace {

constexpr const char* kIntroduction = R"(# Configuration

<!-- Generated from the schema (src/config/schema_table_*.cpp) by `hone schema --markdown`; a test compares them. -->

A run is described by one file, in YAML or JSON. Keys may stand at the top or inside sections: a section such as
`training:` or `lora:` only groups keys, and `lora: {r: 8}` says the same as `lora_r: 8`.

- **Overrides** follow the file on the command line: `key=value`, `--key value`, `--key=value`; dashes are read as
  underscores, `--packing` says true, `section.key=value` works, lists are written `[a, b]` or `a,b`. A key that takes
  text takes the next word, whatever it is; a switch takes only `true` and `false`, and neither it nor a key without
  effect takes a following `key=value`. An override replaces what the file says about its key, under whatever names, and
  about keys that decide the same (`save_steps` and `saves_per_epoch`); `key=null` takes back what the file says.
- **Environment**: `${NAME}` is replaced by the variable, which must be set; `${NAME:-default}` need not be; `$${` writes
  `${`. Variables such as `ACCELERATE_KT_BACKEND` or `KT_SFT_PROFILE` are keys here: set in the environment they are not
  read, and the start names them.
- **Names of other tools** are understood (column "also called"; not listed are KTransformers' with `accelerate_` before
  them or inside `kt_config`); `hone convert-config` [translates](migration.md) whole files. Two names of one key that say different things are an error; of one name that is written twice the last counts.
- **Unknown keys** and values of the wrong type or out of range are errors: all in one message, with line and nearest
  known names.
- **Known, not in this version**: such a key ends the program with exit code 2, unless its value only says that the
  feature is off (`fp16: false`).
- **No effect**: keys that cannot change the mathematics are accepted with a line that says why they do nothing.
- `null` leaves a key at its default. Each default that was not stated is printed at start.
- The whole configuration, defaults included, is written to `output_dir/config.resolved.yaml`, which runs again as it is.

`per_device_train_batch_size` × `gradient_accumulation_steps` = `global_batch_size`: any two fix the third, and
`tokens_per_step` may stand for `global_batch_size`. A bare `batch_size` is refused: tools mean different things by it.
)";

std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string type_cell(const KeySpec& key) {
  if (key.type == KeyType::kChoice) {
    return list_in_code(key.choices) +
           (key.numbered_choice.empty() ? "" : ", " + in_code(fmt::format("{}:N", key.numbered_choice)));
  }
  // Shorter than in a message: "integer ≥ 1" for "an integer of at least 1".
  std::string text = expectation(key);
  for (const std::string_view article : {"an ", "a "}) {
    if (text.starts_with(article)) text.erase(0, article.size());
  }
  const std::string bound = " of at least ";
  if (const size_t at = text.find(bound); at != std::string::npos) text.replace(at, bound.size(), " ≥ ");
  return text;
}

std::string default_cell(const KeySpec& key) {
  if (!key.default_note.empty()) return key.default_note;
  if (key.default_value.is_null()) return "";
  if (key.type == KeyType::kSize) return fmt::format("`{}GB`", key.default_value->get<int64_t>() / 1'000'000'000);
  if (key.default_value->is_string()) return in_code(key.default_value->get<std::string>());
  return in_code(key.default_value.dump());
}

/// The names of a key's aliases, but other forms of KTransformers' names.
std::vector<std::string> alias_names(const KeySpec& key) {
  std::vector<std::string> names;
  for (const Alias& alias : key.aliases) {
    const bool form = alias.name.starts_with("accelerate_kt_") || alias.name.starts_with("kt_config.");
    if (!form) names.push_back(alias.name);
  }
  return names;
}

/// A sentence on the other spellings of choices, those of one choice together.
std::string spellings(const KeySpec& key) {
  std::map<std::string, std::vector<std::string>> others;
  for (const auto& [other, choice] : key.choice_aliases) others[choice].push_back(other);
  std::string text;
  for (const auto& [choice, words] : others) {
    text += (text.empty() ? " Also spelled: " : "; ") + list_in_code(words) +
            (choice.empty() ? "" : " = " + in_code(choice));
  }
  return text.empty() ? "" : text + ".";
}

std::string help_cell(const KeySpec& key) {
  std::string text = key.help;
  if (!key.later_choices.empty()) {
    text += key.instead.empty() ? fmt::format(" Not in this version: {}.", list_in_code(key.later_choices))
                                : fmt::format(" Refused: {}; {}.", list_in_code(key.later_choices), key.instead);
  }
  return text + spellings(key);
}

std::string supported_tables(const std::vector<KeySpec>& table) {
  std::string text, group;
  for (const KeySpec& key : table) {
    if (key.status != KeyStatus::kSupported) continue;
    if (key.group != group) {
      group = key.group;
      text +=
          fmt::format("\n## {}\n\n| key | value | default | also called | meaning |\n|---|---|---|---|---|\n", group);
    }
    text += fmt::format("| {} | {} | {} | {} | {} |\n", in_code(key.name), cell(type_cell(key)),
                        cell(default_cell(key)), cell(list_in_code(alias_names(key))), cell(help_cell(key)));
  }
  return text;
}

std::string short_table(const std::vector<KeySpec>& table, KeyStatus status, const char* title, const char* meaning) {
  std::string text = fmt::format("\n## {}\n\n| key | also called | {} |\n|---|---|---|\n", title, meaning);
  for (const KeySpec& key : table) {
    if (key.status != status) continue;
    text += fmt::format("| {} | {} | {} |\n", in_code(key.name), cell(list_in_code(alias_names(key))), cell(key.help));
  }
  return text;
}

Json typed(const KeySpec& key) {
  switch (key.type) {
    case KeyType::kBool:
      return {{"type", "boolean"}};
    case KeyType::kInteger:  // a redirected value may be a fraction: warmup_steps: 0.1
      return {{"type", key.redirect ? "number" : "integer"}};
    case KeyType::kNumber:
      return {{"type", "number"}};
    case KeyType::kSize:
      return {{"type", {"integer", "string"}}};
    case KeyType::kString:
      return {{"type", "string"}};
    case KeyType::kPath:
      return {{"type", "string"}};
    case KeyType::kChoice:
      return Json::object();
    case KeyType::kStringList:
      return {{"type", {"array", "string"}}, {"items", {{"type", "string"}}}};
    case KeyType::kMapping:
      return {{"type", "object"}};
    case KeyType::kNamed:
      return {{"type", {"string", "object"}}};
    case KeyType::kDatasets:
      return {{"$ref", "#/$defs/datasets"}};
  }
  return Json::object();
}

Json number_json(double value) { return value == std::floor(value) ? Json(static_cast<int64_t>(value)) : Json(value); }

void add_range(Json& property, const Range& range) {
  if (range.minimum) property[range.minimum_open ? "exclusiveMinimum" : "minimum"] = number_json(*range.minimum);
  if (range.maximum) property[range.maximum_open ? "exclusiveMaximum" : "maximum"] = number_json(*range.maximum);
}

/// The values that mean unset: null, and texts such as -1 or auto.
Json unset_values(const KeySpec& key) {
  Json values = Json::array({nullptr});
  double number = 0;
  for (const std::string& text : key.unset_texts) {
    values.push_back(parse_number(text, number) ? number_json(number) : Json(text));
  }
  return values;
}

/// All spellings of a choice, Hone's and other tools'; true and false also as booleans.
Json choice_values(const KeySpec& key) {
  Json values = Json::array();
  const auto add = [&](const std::string& word) {
    if (word == "true" || word == "false") values.push_back(word == "true");
    values.push_back(word);
  };
  for (const std::string& choice : key.choices) add(choice);
  for (const auto& [other, choice] : key.choice_aliases) {
    if (key.is_choice(choice)) add(other);
  }
  for (const Json& value : unset_values(key)) values.push_back(value);
  return values;
}

Json property_of(const KeySpec& key) {
  Json property = {{"description", key.help}};
  if (key.status != KeyStatus::kSupported) {
    const bool later = key.status == KeyStatus::kLater;
    property["description"] = (later ? "Known, not in this version. " : "No effect. ") + key.help;
    return property;
  }
  if (key.type == KeyType::kChoice && !key.numbered_choice.empty()) {
    property["anyOf"] = {{{"enum", choice_values(key)}},
                         {{"pattern", fmt::format("^{}:[0-9]+$", key.numbered_choice)}}};
  } else if (key.type == KeyType::kChoice) {
    property["enum"] = choice_values(key);
  } else if (!key.rewrite) {
    Json value = typed(key);
    if (key.type != KeyType::kSize) add_range(value, key.range);
    property["anyOf"] = {std::move(value), {{"enum", unset_values(key)}}};
  }
  if (!key.default_note.empty()) {
    property["description"] = fmt::format("{} Default: {}.", key.help, key.default_note);
  } else if (!key.default_value.is_null()) {
    property["default"] = key.default_value;
  }
  return property;
}

/// All names of a table that can be written without a section, as properties.
Json properties_of(const std::vector<KeySpec>& table) {
  Json properties = Json::object();
  const auto plain = [](const std::string& name) { return name.substr(name.find('.') + 1); };
  for (const KeySpec& key : table) properties[plain(key.name)] = property_of(key);
  for (const KeySpec& key : table) {
    for (const Alias& alias : key.aliases) {
      const std::string name = plain(alias.name);
      if (!properties.contains(name)) properties[name] = {{"description", fmt::format("Called {} here.", key.name)}};
    }
  }
  return properties;
}

}  // namespace

std::string schema_markdown() {
  std::string text =
      kIntroduction + presets_markdown() + supported_tables(schema()) + supported_tables(dataset_schema());
  text += short_table(schema(), KeyStatus::kLater, "Known, not in this version", "meaning");
  text += short_table(schema(), KeyStatus::kNoEffect, "Recognised, no effect", "why");
  text += fmt::format("\n## Sections\n\n{}.\n", list_in_code(section_names()));
  return text;
}

Json schema_json() {
  Json result = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "hone configuration"},
                 {"type", "object"},
                 {"properties", properties_of(schema())},
                 {"additionalProperties", false}};
  Json& properties = result["properties"];
  for (const std::string& section : section_names()) {
    if (!properties.contains(section)) {
      properties[section] = {{"description", "A section."}, {"$ref", "#"}};
    }
  }
  const Json entry = {
      {"type", "object"}, {"properties", properties_of(dataset_schema())}, {"additionalProperties", false}};
  const Json item = {{"anyOf", {{{"type", "string"}}, entry}}};
  result["$defs"]["datasets"] = {{"anyOf", {{{"type", "string"}}, entry, {{"type", "array"}, {"items", item}}}}};
  return result;
}

}  // namespace hone
