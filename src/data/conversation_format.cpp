#include "data/conversation_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/jsonl_reader.h"
#include "data/train_detail.h"

namespace hone {

namespace {

/// Keys by which a message says whether, or how much, it is learnt.
constexpr std::array<std::string_view, 4> kWeightKeys = {"train", "weight", "loss", "loss_mask"};

struct MessageReader {
  const RowColumns& columns;
  Conversation& conversation;

  /// Adds the messages of column `name`.
  void read(std::string_view name) {
    const Json& list = columns.at(name);
    if (!list.is_array()) columns.fail_type(name, "a list of messages", list);
    if (list.empty()) columns.fail(fmt::format("'{}' is an empty list", name), "remove the row, or add messages");
    for (size_t i = 0; i < list.size(); ++i) add(list[i], fmt::format("{}[{}]", name, i));
  }

 private:
  void add(const Json& message, const std::string& name) {
    if (!message.is_object()) columns.fail_type(name, R"({"role": …, "content": …})", message);
    check_role(message, name);
    const std::optional<float> weight = weight_of(message, name);
    conversation.weights.push_back(weight.value_or(1.0f));
    if (weight.value_or(0.0f) > 0 && message["role"] != "assistant") conversation.other_roles_ask = true;
    Json kept = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (std::find(kWeightKeys.begin(), kWeightKeys.end(), key) != kWeightKeys.end()) continue;
      kept[key] = key == "content" && value.is_array() ? Json(joined_parts(value, name)) : value;
    }
    check_content(kept, name);
    conversation.details.push_back(details_of(kept, name));
    conversation.messages.push_back(std::move(kept));
  }

  void check_role(const Json& message, const std::string& name) const {
    const auto role = message.find("role");
    if (role != message.end() && role->is_string()) return;
    if (message.contains("from") && message.contains("value")) {
      columns.fail(fmt::format("{} has the keys 'from' and 'value' of the format sharegpt, which is not read in this "
                               "version",
                               name),
                   R"(write {"role": "user" or "assistant", "content": …})");
    }
    if (role != message.end()) columns.fail_type(name + ".role", "text", *role);
    columns.fail(fmt::format("{} has no 'role'", name), fmt::format("it has the keys: {}", column_names(message)));
  }

  void check_content(const Json& message, const std::string& name) const {
    const auto content = message.find("content");
    const bool has_content = content != message.end() && !content->is_null();
    if (has_content && !content->is_string()) columns.fail_type(name + ".content", "text", *content);
    for (auto key : {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"}) {
      if (has_content || message.contains(key)) return;
    }
    columns.fail(fmt::format("{} has neither content nor tool calls", name),
                 fmt::format("it has the keys: {}", column_names(message)));
  }

  /// [{"type": "text", "text": "a"}, …] as one text: templates that take parts write them without anything between.
  std::string joined_parts(const Json& parts, const std::string& name) const {
    std::string text;
    for (const Json& part : parts) {
      if (part.is_string()) {
        text += part.get_ref<const std::string&>();
        continue;
      }
      const auto found = part.is_object() ? part.find("text") : part.end();
      const bool is_text =
          part.is_object() && part.value("type", Json("text")) == "text" && found != part.end() && found->is_string();
      if (!is_text) {
        columns.fail(fmt::format("{}.content has a part that is not text; images and other media are not trained in "
                                 "this version",
                                 name),
                     R"(keep only parts of the form {"type": "text", "text": …})");
      }
      text += found->get_ref<const std::string&>();
    }
    return text;
  }

  /// Takes the key `train_detail` off the message.
  std::vector<TrainDetail> details_of(Json& message, const std::string& name) const {
    const auto found = message.find("train_detail");
    if (found == message.end()) return {};
    const Json detail = std::move(*found);
    message.erase("train_detail");
    if (detail.is_null()) return {};
    const auto content = message.find("content");
    const bool has_text = content != message.end() && content->is_string();
    return train_detail_of(detail, has_text ? content->get<std::string>() : "", columns, name + ".train_detail");
  }

  std::optional<float> weight_of(const Json& message, const std::string& name) const {
    std::optional<float> weight;
    for (auto key : kWeightKeys) {
      const auto found = message.find(key);
      if (found == message.end() || found->is_null()) continue;
      const float factor = loss_factor(*found, columns, fmt::format("{}.{}", name, key));
      if (weight && *weight != factor) {
        columns.fail(fmt::format("{} says twice, differently, whether it is learnt", name),
                     "keep one of train, weight, loss and loss_mask");
      }
      weight = factor;
    }
    return weight;
  }
};

Json tools_of(const RowColumns& columns) {
  const Json* tools = columns.find("tools");
  if (!tools) return nullptr;
  if (tools->is_array()) return *tools;
  if (!tools->is_string()) columns.fail_type("tools", "a list", *tools);
  const auto& text = tools->get_ref<const std::string&>();
  if (text.empty() || text == "null") return nullptr;
  Json parsed = nested_too_deep(text) ? Json() : Json::parse(text, nullptr, false);
  if (!parsed.is_array()) columns.fail("'tools' is text that is not a JSON list", "write the list of tools itself");
  return parsed;
}

void read_settings(const RowColumns& columns, Conversation& conversation) {
  conversation.tools = tools_of(columns);
  const Json* kwargs = columns.find("chat_template_kwargs");
  if (!kwargs) return;
  if (!kwargs->is_object()) columns.fail_type("chat_template_kwargs", "an object", *kwargs);
  conversation.template_kwargs = *kwargs;
}

}  // namespace

Conversation conversation_of_messages(const RowColumns& columns) {
  Conversation conversation;
  MessageReader{columns, conversation}.read("messages");
  read_settings(columns, conversation);
  return conversation;
}

Conversation conversation_of_completion(const RowColumns& columns) {
  Conversation conversation;
  MessageReader reader{columns, conversation};
  reader.read("prompt");
  conversation.completion_begin = conversation.messages.size();
  reader.read("completion");
  read_settings(columns, conversation);
  return conversation;
}

}  // namespace hone
