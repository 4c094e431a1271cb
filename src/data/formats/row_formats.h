// Readers of the row formats: chats, a question with its answer, tokens.
#pragma once

#include <string>

#include "data/formats/row_columns.h"
#include "data/formats/sample_format.h"

namespace hone {

// Rows that are chats: the formats `messages`, `sharegpt` and conversational `prompt_completion`.

/// Reads {"messages": [{"role", "content", …}, …], "system": …, "tools": […], "chat_template_kwargs": {…}}. The list
/// and tools may be JSON text. Joins the text parts of a content; throws for other parts (images). A `system` column
/// becomes the first message; throws if the chat has a different system message.
Conversation conversation_of_messages(const RowColumns& columns);

/// Reads {"conversations": [{"from", "value"}, …], …} with the speakers of ShareGPT: human and user; gpt, assistant,
/// model, …; system; tool, function, observation, … for the result of a tool; function_call and tool_call for {"name",
/// "arguments"} as JSON, or a list of them, which become tool_calls of the assistant. Throws for any other speaker.
Conversation conversation_of_sharegpt(const RowColumns& columns);

/// Reads {"prompt": [messages], "completion": [messages], …}.
Conversation conversation_of_completion(const RowColumns& columns);

/// Reads the columns `tools` and `chat_template_kwargs`; `system_column` ("": none) becomes the first message.
void read_settings(const RowColumns& columns, Conversation& conversation, const std::string& system_column = "system");

/// Adds a message with the weight 1.
void add_message(Conversation& conversation, const std::string& role, std::string content);

/// Whether a message of the assistant has thinking: in a separate key, or in think tags of its content.
bool has_thoughts(const Conversation& conversation);

/// The column with the messages: the mapped one, or the first existing one of messages, conversations and conversation;
/// else "messages".
std::string messages_column(const RowColumns& columns);

// Rows that are one question with its answer, for the chat template: the formats `alpaca` and `prompt_response`.

/// The columns of a row by their meaning; "" for none.
struct OneTurnColumns {
  std::string system, prompt, input, response, history;
};

/// The columns of alpaca: instruction, input, output, system, history; a mapping may also use prompt and response.
OneTurnColumns alpaca_columns(const RowColumns& columns);

/// The columns of prompt_response: with `question`, that is the question and `prompt` the system message; without it,
/// `prompt` is the question and `system` the system message. The answer is `response` or `answer`. Mapped names take
/// precedence.
OneTurnColumns prompt_response_columns(const RowColumns& columns);

/// Returns [system], the turns of history ([[question, answer], …], or the same as JSON text), the question with the
/// input on the next line, and the answer. Omits empty system messages, inputs and histories. Throws UserError if a
/// column is missing or not text, or if the question is empty.
Conversation conversation_of_turn(const RowColumns& columns, const OneTurnColumns& names);

// Rows that are tokens.

/// Reads {"input_ids": […], "labels": […], "weights": […], "attention_mask": [1, …], "position_ids": [0, 1, …]}. labels
/// are aligned with input_ids as in Hugging Face's format (not shifted), -100: no loss; default: input_ids. A weight of
/// 0 also means no loss. attention_mask and position_ids must match Hone's: no padding, one document per row.
TokenizedRow tokenized_row(const RowColumns& columns);

}  // namespace hone
