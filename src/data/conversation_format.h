// Rows that are chats: the formats `messages`, `sharegpt` and conversational `prompt_completion`.
#pragma once

#include <string>

#include "data/row_columns.h"
#include "data/sample_format.h"

namespace hone {

/// {"messages": [{"role", "content", …}, …], "system": …, "tools": […], "chat_template_kwargs": {…}}. The list and
/// tools may be JSON as text. A content of text parts is joined; other parts (images) are refused. A `system` column
/// stands in front as a message of its own; a chat that has another one already is refused.
Conversation conversation_of_messages(const RowColumns& columns);

/// {"conversations": [{"from", "value"}, …], …} with the speakers of ShareGPT: human and user; gpt, assistant, model,
/// …; system; tool, function, observation, …: what a tool answered; function_call and tool_call: {"name", "arguments"}
/// as JSON, or a list of them, which become tool_calls of the assistant. Another speaker is refused.
Conversation conversation_of_sharegpt(const RowColumns& columns);

/// {"prompt": [messages], "completion": [messages], …}.
Conversation conversation_of_completion(const RowColumns& columns);

/// Adds the columns `tools` and `chat_template_kwargs`, and puts the text of `system_column` ("": none) in front.
void read_settings(const RowColumns& columns, Conversation& conversation, const std::string& system_column = "system");

/// Adds a message with the weight 1.
void add_message(Conversation& conversation, const std::string& role, std::string content);

/// Whether some message of the assistant has thoughts: in a key of their own, or in think tags of its content.
bool has_thoughts(const Conversation& conversation);

/// The column that holds the messages: that of the mapping, or the first of messages, conversations and conversation
/// that is there; "messages" if there is none.
std::string messages_column(const RowColumns& columns);

}  // namespace hone
