// Rows of messages: the formats `messages` and conversational `prompt_completion`.
#pragma once

#include "data/row_columns.h"
#include "data/sample_format.h"

namespace hone {

/// {"messages": [{"role", "content", …}, …], "tools": […], "chat_template_kwargs": {…}}. Tools may be a list, or text
/// that holds one as JSON. A content of text parts is joined; other parts (images) are refused.
Conversation conversation_of_messages(const RowColumns& columns);

/// {"prompt": [messages], "completion": [messages], …}.
Conversation conversation_of_completion(const RowColumns& columns);

}  // namespace hone
