#include "data/formats/row_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "core/text/json.h"
#include "data/formats/message_reader.h"
#include "data/formats/token_block.h"
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
  Json& messages = *conversation.messages;
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
  return std::any_of(conversation.messages->begin(), conversation.messages->end(), [](const Json& message) {
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
  conversation.messages->push_back({{"role", role}, {"content", std::move(content)}});
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

namespace {

/// The first of `names` that is mapped or that the row has, or "".
std::string first_of(const RowColumns& columns, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (columns.mapping().column(name)) return name;
  }
  for (const char* name : names) {
    if (columns.find(name)) return name;
  }
  return "";
}

std::string or_else(const std::string& name, const char* other) { return name.empty() ? other : name; }

void add_history(const RowColumns& columns, const std::string& name, Conversation& conversation) {
  const Json* column = name.empty() ? nullptr : columns.find(name);
  if (!column || *column == "") return;
  const std::string label = columns.label(name);
  const Json turns = columns.list_of(label, *column, "a list of turns [question, answer]");
  for (size_t i = 0; i < turns.size(); ++i) {
    const Json& turn = turns[i];
    if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string()) {
      columns.fail(fmt::format("{}[{}] is not a turn", label, i), R"(a turn is ["question", "answer"])");
    }
    add_message(conversation, "user", turn[0].get<std::string>());
    add_message(conversation, "assistant", turn[1].get<std::string>());
  }
}

}  // namespace

OneTurnColumns alpaca_columns(const RowColumns& columns) {
  return {.system = "system",
          .prompt = columns.mapping().column("prompt") ? "prompt" : "instruction",
          .input = "input",
          .response = columns.mapping().column("response") ? "response" : "output",
          .history = "history"};
}

OneTurnColumns prompt_response_columns(const RowColumns& columns) {
  OneTurnColumns names;
  names.prompt = columns.mapping().column("prompt") ? "prompt" : first_of(columns, {"question", "prompt"});
  names.system = first_of(columns, {"system"});
  if (names.system.empty() && names.prompt == "question" && columns.find("prompt")) names.system = "prompt";
  names.prompt = or_else(names.prompt, "prompt");
  names.response = or_else(first_of(columns, {"response", "answer"}), "response");
  names.history = "history";
  return names;
}

Conversation conversation_of_turn(const RowColumns& columns, const OneTurnColumns& names) {
  Conversation conversation;
  add_history(columns, names.history, conversation);
  std::string question = columns.text_at(names.prompt);
  const std::string input = names.input.empty() ? "" : columns.text_or_empty(names.input);
  if (!input.empty()) question += (question.empty() ? "" : "\n") + input;
  if (question.empty()) {
    columns.fail(fmt::format("'{}' is empty", columns.label(names.prompt)), "remove the row, or add a question");
  }
  add_message(conversation, "user", std::move(question));
  add_message(conversation, "assistant", columns.text_at(names.response));
  read_settings(columns, conversation, names.system);
  return conversation;
}

namespace {

const Json& list_of(const RowColumns& columns, std::string_view name, const Json& list, size_t size) {
  if (!list.is_array()) columns.fail_type(name, "a list", list);
  if (list.size() != size) {
    columns.fail(fmt::format("'{}' has {} entries, 'input_ids' has {}", name, list.size(), size),
                 "the lists are aligned: one entry for each token");
  }
  return list;
}

/// Entry i of a list of integers, which must fit 32 bits.
int32_t integer_at(const RowColumns& columns, std::string_view name, const Json& list, size_t i) {
  const Json& entry = list[i];
  if (!entry.is_number_integer()) columns.fail_type(fmt::format("{}[{}]", name, i), "a whole number", entry);
  const bool fits = entry.is_number_unsigned() ? entry.get<uint64_t>() <= INT32_MAX
                                               : entry.get<int64_t>() >= INT32_MIN && entry.get<int64_t>() <= INT32_MAX;
  if (!fits) columns.fail(fmt::format("{}[{}] is {}", name, i, entry.dump()), "token ids fit 32 bits");
  return static_cast<int32_t>(entry.get<int64_t>());
}

void read_weights(const RowColumns& columns, TokenizedRow& row) {
  const Json* weights = columns.find("weights");
  if (!weights) return;
  list_of(columns, "weights", *weights, row.input_ids.size());
  for (size_t i = 0; i < weights->size(); ++i) {
    const Json& entry = (*weights)[i];
    if (!entry.is_number()) columns.fail_type(fmt::format("weights[{}]", i), "a number", entry);
    const auto weight = entry.get<double>();
    if (!(weight >= 0 && weight <= kMaxWeight)) {
      columns.fail(fmt::format("weights[{}] is {}", i, entry.dump()),
                   fmt::format("a weight is in [0, {}]", kMaxWeight));
    }
    if (weight == 0) row.labels[i] = kIgnoredLabel;
    row.weights.push_back(static_cast<float>(weight));
  }
}

void check_layout(const RowColumns& columns, size_t size) {
  if (const Json* mask = columns.find("attention_mask")) {
    list_of(columns, "attention_mask", *mask, size);
    for (size_t i = 0; i < size; ++i) {
      if ((*mask)[i] == 1 || (*mask)[i] == true) continue;
      columns.fail(fmt::format("attention_mask[{}] is {}, not 1", i, (*mask)[i].dump()),
                   "remove the padding from the row: Hone packs samples without any");
    }
  }
  if (const Json* positions = columns.find("position_ids")) {
    list_of(columns, "position_ids", *positions, size);
    for (size_t i = 0; i < size; ++i) {
      if ((*positions)[i] == i) continue;
      columns.fail(fmt::format("position_ids[{}] is {}, not {}", i, (*positions)[i].dump(), i),
                   "write one document per row: Hone packs them and sets the positions of each from 0");
    }
  }
}

}  // namespace

TokenizedRow tokenized_row(const RowColumns& columns) {
  TokenizedRow row;
  const Json& ids = columns.at("input_ids");
  if (!ids.is_array()) columns.fail_type("input_ids", "a list of token ids", ids);
  if (ids.empty()) columns.fail("'input_ids' is an empty list", "remove the row");
  for (size_t i = 0; i < ids.size(); ++i) row.input_ids.push_back(integer_at(columns, "input_ids", ids, i));
  if (const Json* labels = columns.find("labels")) {
    list_of(columns, "labels", *labels, ids.size());
    for (size_t i = 0; i < ids.size(); ++i) row.labels.push_back(integer_at(columns, "labels", *labels, i));
  } else {
    row.labels = row.input_ids;
  }
  read_weights(columns, row);
  check_layout(columns, ids.size());
  return row;
}

}  // namespace hone
