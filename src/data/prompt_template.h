// Prompts that are written as text: how a row of instruction, input and output becomes a prompt and what follows it.
#pragma once

#include <string>

#include "core/json.h"
#include "data/row_columns.h"
#include "data/sample_format.h"

namespace hone {

/// A text with {instruction}, {input} and {system} in it; {{ and }} write { and }. The answer is learnt behind it, then
/// the end of the text. Prompt and answer are encoded apart, as tools with such prompts do.
class PromptTemplate {
 public:
  /// The name of a built-in one, or a mapping:
  ///   format            of rows with an input
  ///   no_input_format   of rows without; absent: format, with nothing in the place of the input
  ///   system_format     in front of the prompt where there is a system message; absent: "{system}"
  ///   system_prompt     the system message of rows without the column system; absent: none
  /// Built in: alpaca, alpaca_chat, alpaca_chatml, alpaca_phi (Alpaca's prompt in four dresses, whose system message is
  /// fixed), and plain (instruction, a space and the input, of which the answer is one space away).
  /// Throws UserError at `where`.
  static PromptTemplate parse(const Json& json, const std::string& where);
  static const PromptTemplate& plain();

  /// Reads instruction, input, output and system of a row, under the mapping's names. Throws UserError: a column is
  /// missing or not text.
  PromptCompletion fill(const RowColumns& columns) const;

  /// What parse() was given; equal for templates that write the same.
  const Json& to_json() const { return json_; }

 private:
  std::string format_, no_input_format_, system_format_ = "{system}";
  std::string system_prompt_, no_input_system_prompt_;
  std::string before_output_;  // in front of the answer, and learnt with it
  bool reads_system_ = true;   // the column system
  bool encoded_apart_ = true;
  Json json_;
};

}  // namespace hone
