// What the rows of each format say: chats, a question and its answer, tokens.
#pragma once

#include <string>

#include "data/row_columns.h"
#include "data/sample_format.h"

namespace hone {

// Rows that are chats: the formats `messages`, `sharegpt` and conversational `prompt_completion`.

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

// Rows that are one question and its answer, for the chat template: the formats `alpaca` and `prompt_response`.

/// The columns of a row by what they say; "" where there is none.
struct OneTurnColumns {
  std::string system, prompt, input, response, history;
};

/// Of alpaca: instruction, input, output, system, history; the mapping may call them prompt and response as well.
OneTurnColumns alpaca_columns(const RowColumns& columns);

/// Of prompt_response: `question` is what is asked, and then `prompt` is the system message; without `question` the
/// prompt is what is asked and `system` the system message. The answer is `response`, or `answer`. What the mapping
/// names comes first.
OneTurnColumns prompt_response_columns(const RowColumns& columns);

/// [system], then the turns of history ([[question, answer], …], or that as JSON text), then the question with the
/// input on a line of its own behind it, and the answer. Empty system messages, inputs and histories are left out.
/// Throws UserError: a column is missing or not text, the question is empty.
Conversation conversation_of_turn(const RowColumns& columns, const OneTurnColumns& names);

// Rows that are tokens already.

/// {"input_ids": […], "labels": […], "weights": […], "attention_mask": [1, …], "position_ids": [0, 1, …]}.
/// labels are aligned with input_ids as Hugging Face's (not shifted), -100 = not learnt; absent: all of input_ids.
/// A weight of 0 is not learnt either. attention_mask and position_ids must say what Hone does anyway: no padding, one
/// document a row.
TokenizedRow tokenized_row(const RowColumns& columns);

}  // namespace hone
