#include "app/convert_config/dataset_types.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

ConfigNode scalar(const ConfigNode& place, std::string text) {
  ConfigNode node;
  node.kind = Kind::kScalar;
  node.text = std::move(text);
  node.quoted = true;
  node.where = place.where;
  return node;
}

ConfigNode mapping(const ConfigNode& place) {
  ConfigNode node;
  node.kind = Kind::kMapping;
  node.where = place.where;
  return node;
}

/// Axolotl's names of Alpaca's prompt. The part behind the colon is the dress.
constexpr std::array<std::pair<const char*, const char*>, 5> kPrompts = {{{"alpaca", "alpaca"},
                                                                          {"alpaca:instruct", "alpaca"},
                                                                          {"alpaca:chat", "alpaca_chat"},
                                                                          {"alpaca:chatml", "alpaca_chatml"},
                                                                          {"alpaca:phi", "alpaca_phi"}}};

std::string text_of(const ConfigNode& type, const char* member, const char* otherwise) {
  const ConfigNode* found = type.find(member);
  return found && found->kind == Kind::kScalar ? found->text : otherwise;
}

/// type: {field_instruction: …, format: …}. What is not stated is Axolotl's default.
std::vector<ConfigMember> user_defined(const ConfigNode& type, Translation& result) {
  ConfigNode columns = mapping(type), prompt = mapping(type);
  for (const char* ours : {"instruction", "input", "output", "system"}) {
    const std::string column = text_of(type, (std::string("field_") + ours).c_str(), ours);
    if (column != ours) columns.members.emplace_back(ours, scalar(type, column));
  }
  prompt.members.emplace_back("format", scalar(type, text_of(type, "format", "{instruction} {input} ")));
  prompt.members.emplace_back("no_input_format", scalar(type, text_of(type, "no_input_format", "{instruction} ")));
  for (const char* name : {"system_format", "system_prompt"}) {
    const std::string text = text_of(type, name, "");
    if (!text.empty()) prompt.members.emplace_back(name, scalar(type, text));
  }
  for (const auto& [name, value] : type.members) {
    const bool known = name.starts_with("field_") || name == "format" || name == "no_input_format" ||
                       name == "system_format" || name == "system_prompt";
    if (!known && value.kind != Kind::kNull) {
      result.refused.push_back({fmt::format("datasets: type: {}: {}", name, shown(value)), value.where,
                                "no key of a prompt that is known here"});
    }
  }
  std::vector<ConfigMember> members = {{"type", scalar(type, "alpaca")}, {"prompt_template", std::move(prompt)}};
  if (!columns.members.empty()) members.emplace_back("column_mapping", std::move(columns));
  return members;
}

}  // namespace

std::vector<ConfigMember> members_of_type(const ConfigNode& type, Translation& result) {
  if (type.kind == Kind::kMapping) return user_defined(type, result);
  if (type.kind != Kind::kScalar) return {};
  for (const auto& [name, prompt] : kPrompts) {
    if (type.text == name) return {{"type", scalar(type, "alpaca")}, {"prompt_template", scalar(type, prompt)}};
  }
  if (type.text == "chat_template.default") return {{"type", scalar(type, "messages")}};
  if (type.text == "pretrain") {
    result.look.push_back({"datasets: type: pretrain", type.where,
                           "texts need not run on from one to the next: they do not see each other here"});
    return {{"type", scalar(type, "text")}};
  }
  return {};
}

void add_thinking(const ConfigNode& item, ConfigNode& entry, Translation& result) {
  const std::string field = text_of(item, "field_thinking", "reasoning_content");
  const std::string key = text_of(item, "template_thinking_key", "reasoning_content");
  if (field == key) return;  // keys of a message reach the template under their own names
  if (key != "reasoning_content" && key != "thinking") {
    const ConfigNode* place = item.find("template_thinking_key");
    result.refused.push_back({fmt::format("datasets: template_thinking_key: {}", key), place->where,
                              fmt::format("call the key of the rows {}, as the template does", key)});
    return;
  }
  ConfigNode columns = mapping(item);
  columns.members.emplace_back(key, scalar(item, field));
  entry.members.emplace_back("column_mapping", std::move(columns));
}

}  // namespace hone
