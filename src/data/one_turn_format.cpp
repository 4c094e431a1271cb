#include "data/one_turn_format.h"

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

#include "data/conversation_format.h"

namespace hone {

namespace {

/// The first of `names` that the mapping reads or the row has, or "".
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
    columns.fail(fmt::format("'{}' is empty", columns.label(names.prompt)), "remove the row, or say what is asked");
  }
  add_message(conversation, "user", std::move(question));
  add_message(conversation, "assistant", columns.text_at(names.response));
  read_settings(columns, conversation, names.system);
  return conversation;
}

}  // namespace hone
