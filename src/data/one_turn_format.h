// Rows that are one question and its answer, for the chat template: the formats `alpaca` and `prompt_response`.
#pragma once

#include <string>

#include "data/row_columns.h"
#include "data/sample_format.h"

namespace hone {

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

}  // namespace hone
