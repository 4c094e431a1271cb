#include "data/formats/column_mapping.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

namespace {

using Names = std::pair<std::string_view, std::string_view>;

/// Names of other tools, and Hone's.
constexpr std::array<Names, 12> kOtherNames = {{{"conversations", "messages"},
                                                {"conversation", "messages"},
                                                {"question", "prompt"},
                                                {"answer", "response"},
                                                {"query", "prompt"},
                                                {"role_tag", "role"},
                                                {"content_tag", "content"},
                                                {"message_field_role", "role"},
                                                {"message_field_content", "content"},
                                                {"message_field_training", "train"},
                                                {"from", "role"},
                                                {"value", "content"}}};

/// LLaMA-Factory's tags for speakers.
constexpr std::array<Names, 5> kSpeakerTags = {{{"user_tag", "user"},
                                                {"assistant_tag", "assistant"},
                                                {"system_tag", "system"},
                                                {"observation_tag", "tool"},
                                                {"function_tag", "function_call"}}};

constexpr std::array<std::string_view, 11> kMessageKeys = {"role", "content",   "reasoning_content", "tool_calls",
                                                           "name", "weight",    "tool_call_id",      "train",
                                                           "loss", "loss_mask", "thinking"};

constexpr std::array<std::string_view, 5> kRoles = {"system", "user", "assistant", "tool", "function_call"};

bool is_one_of(std::string_view name, const auto& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The second name of the pair whose first name is `name`, or "".
std::string_view translated(std::string_view name, const auto& pairs) {
  for (const Names& pair : pairs) {
    if (pair.first == name) return pair.second;
  }
  return "";
}

bool says_nothing(const Json& value) { return value.is_null() || value == ""; }

bool is_known(std::string_view name) {
  return name == "roles" || is_one_of(name, known_columns()) || is_one_of(name, kMessageKeys) ||
         !translated(name, kOtherNames).empty() || !translated(name, kSpeakerTags).empty() ||
         is_one_of(name, media_columns());
}

/// Whether the mapping is from data to names, as in ms-swift: {"my_question": "query"}.
bool is_reversed(const Json& mapping) {
  bool unknown = false;
  for (const auto& [name, value] : mapping.items()) {
    if (!value.is_string() || !is_known(value.get_ref<const std::string&>())) return false;
    unknown = unknown || !is_known(name);
  }
  return unknown;
}

[[noreturn]] void refuse_name(const std::string& name, const std::string& where) {
  std::vector<std::string_view> names = known_columns();
  names.insert(names.end(), kMessageKeys.begin(), kMessageKeys.end());
  for (const Names& pair : kOtherNames) names.push_back(pair.first);
  throw UserError(fmt::format("column_mapping has no '{}'.{}", name, did_you_mean(name, names)), where,
                  fmt::format("it maps these names to columns of your data: {}; keys of messages: {}; and roles",
                              fmt::join(known_columns(), ", "), fmt::join(kMessageKeys, ", ")));
}

}  // namespace

const std::vector<std::string_view>& known_columns() {
  static const std::vector<std::string_view> names = {
      "messages", "system",  "tools", "prompt",    "response", "completion", "instruction",    "input",
      "output",   "history", "text",  "input_ids", "labels",   "weights",    "attention_mask", "chat_template_kwargs"};
  return names;
}

const ColumnMapping& ColumnMapping::none() {
  static const ColumnMapping mapping;
  return mapping;
}

ColumnMapping ColumnMapping::parse(const Json& mapping, const std::string& where) {
  ColumnMapping result;
  if (mapping.is_null()) return result;
  if (!mapping.is_object()) throw UserError("column_mapping is not a mapping of names to columns", where);
  Json stated = mapping;
  if (is_reversed(mapping)) {
    stated = Json::object();
    for (const auto& [column, name] : mapping.items()) stated[name.get<std::string>()] = column;
  }
  // In LLaMA-Factory query is the input that belongs to its prompt; in ms-swift it is the prompt.
  const auto query = stated.find("query");
  if (query != stated.end() && (stated.contains("prompt") || stated.contains("instruction"))) {
    result.add("input", *query, where);
    stated.erase("query");
  }
  for (const auto& [name, value] : stated.items()) result.add(name, value, where);
  return result;
}

void ColumnMapping::add(std::string name, const Json& value, const std::string& where) {
  if (says_nothing(value)) return;
  if (name == "roles") return add_roles(value, where);
  if (const std::string_view role = translated(name, kSpeakerTags); !role.empty()) {
    return add_role(std::string(role), value, where);
  }
  if (is_one_of(name, media_columns())) {
    throw UserError(fmt::format("column_mapping names {}, which are not trained on in this version", name), where,
                    fmt::format("to train on the text alone, remove it and set ignore_columns: [{}]",
                                value.is_string() ? value.get<std::string>() : name));
  }
  if (const std::string_view ours = translated(name, kOtherNames); !ours.empty()) name = ours;
  if (!value.is_string()) {
    throw UserError(fmt::format("column_mapping.{} is not the name of a column", name), where);
  }
  const auto column = value.get<std::string>();
  if (is_one_of(name, kMessageKeys)) {
    keys_.push_back({name, column});
  } else if (is_one_of(name, known_columns())) {
    add_column(name, column, where);
  } else {
    refuse_name(name, where);
  }
}

void ColumnMapping::add_column(const std::string& name, const std::string& column, const std::string& where) {
  for (const Entry& entry : columns_) {
    if (entry.name == name && entry.column != column) {
      throw UserError(fmt::format("column_mapping gives {} two columns: '{}' and '{}'", name, entry.column, column),
                      where, "keep one of them");
    }
    if (entry.name != name && entry.column == column) {
      throw UserError(fmt::format("column_mapping reads both {} and {} from the column '{}'", entry.name, name, column),
                      where, "use another column for one of them");
    }
    if (entry.name == name) return;
  }
  columns_.push_back({name, column});
}

void ColumnMapping::add_roles(const Json& roles, const std::string& where) {
  if (!roles.is_object()) {
    throw UserError("column_mapping.roles is not a mapping of roles to speakers", where,
                    "write roles: {user: human, assistant: [gpt, model]}");
  }
  for (const auto& [role, speakers] : roles.items()) add_role(role, speakers, where);
}

void ColumnMapping::add_role(const std::string& role, const Json& speakers, const std::string& where) {
  if (!is_one_of(role, kRoles)) {
    throw UserError(fmt::format("column_mapping.roles has no role '{}'.{}", role, did_you_mean(role, kRoles)), where,
                    fmt::format("write {}: the speaker's name in the data", fmt::join(kRoles, ", ")));
  }
  for (const Json& speaker : speakers.is_array() ? speakers : Json::array({speakers})) {
    if (!speaker.is_string()) throw UserError(fmt::format("column_mapping.roles.{} is not a name", role), where);
    const auto name = speaker.get<std::string>();
    const std::string* known = role_of(name);
    if (known && *known != role) {
      throw UserError(fmt::format("column_mapping.roles makes '{}' both {} and {}", name, *known, role), where,
                      "keep one of them");
    }
    speakers_.push_back({role, name});
  }
}

void ColumnMapping::ignore(const std::vector<std::string>& columns, const std::string& where) {
  for (const std::string& column : columns) {
    if (takes(column)) {
      throw UserError(fmt::format("column_mapping reads the column '{}', and ignore_columns leaves it out", column),
                      where, "use it in one of them only");
    }
    if (!ignores(column)) ignored_.push_back(column);
  }
}

bool ColumnMapping::ignores(std::string_view column) const { return is_one_of(column, ignored_); }

Json ColumnMapping::to_json() const {
  Json json = Json::object();
  if (!ignored_.empty()) json["ignored"] = ignored_;
  for (const auto& [kind, entries] :
       {std::pair{"columns", &columns_}, std::pair{"keys", &keys_}, std::pair{"speakers", &speakers_}}) {
    for (const Entry& entry : *entries) json[kind].push_back({entry.name, entry.column});
  }
  return json;
}

const std::string* ColumnMapping::column(std::string_view name) const {
  for (const Entry& entry : columns_) {
    if (entry.name == name) return &entry.column;
  }
  return nullptr;
}

bool ColumnMapping::takes(std::string_view column) const {
  return std::any_of(columns_.begin(), columns_.end(), [&](const Entry& entry) { return entry.column == column; });
}

std::vector<std::string_view> ColumnMapping::mapped_columns() const {
  std::vector<std::string_view> names;
  for (const Entry& entry : columns_) names.push_back(entry.name);
  return names;
}

const std::string* ColumnMapping::message_key(std::string_view name) const {
  for (const Entry& entry : keys_) {
    if (entry.name == name) return &entry.column;
  }
  return nullptr;
}

std::string_view ColumnMapping::meaning_of_key(std::string_view key) const {
  for (const Entry& entry : keys_) {
    if (entry.column == key) return entry.name;
  }
  return key;
}

const std::string* ColumnMapping::role_of(std::string_view speaker) const {
  for (const Entry& entry : speakers_) {
    if (entry.column == speaker) return &entry.name;
  }
  return nullptr;
}

void ColumnMapping::mark_found(std::string_view name) const {
  for (const Entry& entry : columns_) {
    if (entry.name == name) entry.found->store(true, std::memory_order_relaxed);
  }
}

std::vector<std::string> ColumnMapping::never_found() const {
  std::vector<std::string> columns;
  for (const Entry& entry : columns_) {
    if (!entry.found->load(std::memory_order_relaxed)) columns.push_back(entry.column);
  }
  return columns;
}

const std::vector<std::string_view>& media_columns() {
  static const std::vector<std::string_view> names = {"images", "image", "videos", "video", "audios", "audio"};
  return names;
}

}  // namespace hone
