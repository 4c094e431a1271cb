// Plain-text prompts: converts a row of instruction, input and output to a prompt and a completion.
#pragma once

#include <string>

#include "core/text/json_value.h"
#include "data/formats/row_columns.h"
#include "data/formats/sample_format.h"

namespace hone {

/// A text with the placeholders {instruction}, {input} and {system}; {{ and }} are literal braces. The answer follows
/// it and is supervised, then the end of the text. Prompt and answer are encoded separately, as in tools with such
/// prompts.
class PromptTemplate {
 public:
  /// Parses the name of a built-in template, or a mapping:
  ///   format            for rows with an input
  ///   no_input_format   for rows without one; default: format with an empty input
  ///   system_format     before the prompt if there is a system message; default: "{system}"
  ///   system_prompt     the system message of rows without the column system; default: none
  /// Built-in templates: alpaca, alpaca_chat, alpaca_chatml, alpaca_phi (Alpaca's prompt in four formats, with a fixed
  /// system message), and plain (instruction, a space and the input; the answer follows after one space). Throws
  /// UserError at `where`.
  static PromptTemplate parse(const Json& json, const std::string& where);
  static const PromptTemplate& plain();

  /// Reads instruction, input, output and system of a row, under their mapped names. Throws UserError if a column is
  /// missing or not text.
  PromptCompletion fill(const RowColumns& columns) const;

  /// The argument of parse(); equal for equivalent templates.
  const Json& to_json() const { return json_; }

 private:
  std::string format_, no_input_format_, system_format_ = "{system}";
  std::string system_prompt_, no_input_system_prompt_;
  std::string before_output_;  // before the answer, and supervised with it
  bool reads_system_ = true;   // whether it reads the column system
  bool encoded_apart_ = true;
  JsonValue json_;
};

}  // namespace hone
