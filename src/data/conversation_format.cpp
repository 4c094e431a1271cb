#include "data/conversation_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "data/message_reader.h"
#include "text/thinking.h"

namespace hone {

namespace {

Json tools_of(const RowColumns& columns) {
  const Json* tools = columns.find("tools");
  if (!tools || *tools == "" || *tools == "null") return nullptr;
  return columns.list_of(columns.label("tools"), *tools, "a list of tools");
}

void put_system_in_front(const RowColumns& columns, const std::string& column, Conversation& conversation) {
  const std::string system = column.empty() ? "" : columns.text_or_empty(column);
  if (system.empty()) return;
  Json& messages = conversation.messages;
  if (!messages.empty() && messages[0]["role"] == "system") {
    if (messages[0].value("content", Json()) == system) return;
    columns.fail(fmt::format("the chat begins with a system message, and the column '{}' has another one",
                             columns.label(column)),
                 "keep one of them");
  }
  Json all = Json::array();
  all.push_back({{"role", "system"}, {"content", system}});
  for (Json& message : messages) all.push_back(std::move(message));
  messages = std::move(all);
  conversation.weights.insert(conversation.weights.begin(), 1.0f);
  conversation.details.insert(conversation.details.begin(), {{}});
  if (conversation.completion_begin) ++*conversation.completion_begin;
}

Conversation conversation_of(const RowColumns& columns, Speakers speakers) {
  Conversation conversation;
  const std::string name = messages_column(columns);
  const Json* list = columns.find("messages");
  if (!list) list = columns.find(name);
  MessageReader(columns, speakers, conversation).read(list ? *list : columns.at("messages"), name);
  read_settings(columns, conversation);
  return conversation;
}

}  // namespace

std::string messages_column(const RowColumns& columns) {
  if (columns.find("messages")) return columns.label("messages");
  if (!columns.mapping().column("messages")) {
    for (const char* name : {"conversations", "conversation"}) {
      if (columns.find(name)) return name;
    }
  }
  return columns.label("messages");
}

bool has_thoughts(const Conversation& conversation) {
  return std::any_of(conversation.messages.begin(), conversation.messages.end(), [](const Json& message) {
    const auto text = [&](const char* key) {
      const auto found = message.find(key);
      return found != message.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    if (text("role") != "assistant") return false;
    return !text("reasoning_content").empty() || !text("reasoning").empty() || !text("thinking").empty() ||
           has_think_block(text("content"));
  });
}

void add_message(Conversation& conversation, const std::string& role, std::string content) {
  conversation.messages.push_back({{"role", role}, {"content", std::move(content)}});
  conversation.weights.push_back(1.0f);
  conversation.details.emplace_back();
}

void read_settings(const RowColumns& columns, Conversation& conversation, const std::string& system_column) {
  put_system_in_front(columns, system_column, conversation);
  conversation.tools = tools_of(columns);
  const Json* kwargs = columns.find("chat_template_kwargs");
  if (!kwargs) return;
  if (!kwargs->is_object()) columns.fail_type(columns.label("chat_template_kwargs"), "an object", *kwargs);
  conversation.template_kwargs = *kwargs;
}

Conversation conversation_of_messages(const RowColumns& columns) { return conversation_of(columns, Speakers::kRoles); }

Conversation conversation_of_sharegpt(const RowColumns& columns) {
  return conversation_of(columns, Speakers::kShareGpt);
}

Conversation conversation_of_completion(const RowColumns& columns) {
  Conversation conversation;
  MessageReader reader(columns, Speakers::kRoles, conversation);
  reader.read(columns.at("prompt"), columns.label("prompt"));
  conversation.completion_begin = conversation.messages.size();
  reader.read(columns.at("completion"), columns.label("completion"));
  read_settings(columns, conversation);
  return conversation;
}

}  // namespace hone
