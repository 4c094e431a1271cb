// hone generate: answers of a model, with or without an adapter, to one prompt or to a file of them.
#pragma once

#include <string>

#include "app/inference_model.h"

namespace hone {

/// Exactly one of prompt and input is given.
struct GenerateOptions : InferenceOptions {
  std::string prompt;          ///< a text: the user's message, or with raw the start of a text
  std::string input;           ///< data as training reads them, the answer may be missing; .txt: a prompt a line
  std::string column_mapping;  ///< JSON object, as column_mapping of a data set; "" = none
  std::string output = "-";    ///< of an input: JSONL to write; "-" = standard output
  std::string system;          ///< system message of chats that have none
  bool raw = false;            ///< prompts are continued as they are, without chat template
  int64_t batch_size = 64;     ///< sequences that run at once
  bool force = false;          ///< replace the output file
};

/// One prompt: streams the answer to standard output. A file: writes each row with `generated_text`, `finish_reason`
/// ("stop" or "length"), `prompt_tokens` and `generated_tokens` added, in the order of the input. A last message of
/// the assistant is the expected answer: it is not shown to the model. An answer ends where the model's context does.
/// Returns the exit code. UserError: neither or both of prompt and input, no tokenizer, no chat template, a prompt that
/// is empty or fills the model's context, options out of range.
int run_generate(const GenerateOptions& options);

}  // namespace hone
