// hone generate: a model, optionally with an adapter, answers one prompt or a file of prompts.
#pragma once

#include <string>

#include "app/inference/inference_model.h"

namespace hone {

/// Exactly one of prompt and input is given.
struct GenerateOptions : InferenceOptions {
  std::string prompt;          ///< the user's message, or with raw the beginning of a text
  std::string input;           ///< training data, whose answers may be missing; .txt: one prompt per line
  std::string column_mapping;  ///< JSON object, as column_mapping of a data set; "" = none
  std::string output = "-";    ///< JSONL to write, with `input`; "-" = standard output
  std::string system;          ///< system message for chats without one
  bool raw = false;            ///< prompts are continued without chat template
  int64_t batch_size = 64;     ///< sequences that run at once, on each rank
  int64_t cache_tokens = 0;    ///< GeneratorOptions::cache_tokens, on each rank
  bool force = false;          ///< replace the output file, and answers of another command that are not complete
};

/// One prompt: streams the answer to standard output. A file: writes each row with `generated_text`, `finish_reason`
/// ("stop" or "length"), `prompt_tokens` and `generated_tokens` added, in the order of the input. A last message of the
/// assistant is the expected answer and not part of the prompt. Answers for a file are kept in OUTPUT.hone-partial
/// until all are ready; the same call goes on after those, with the same bytes; UserError if they are of other rows, of
/// another model or settings, unless `force` is set. An answer ends at the end of the model's context. Returns the exit
/// code. Throws UserError for neither or both of prompt and input, a missing tokenizer or chat template, a prompt that
/// is empty or fills the model's context, and options out of range. Of `ranks` from a launcher the first writes and
/// prints; prompts are dealt among them (infer/generator.h).
int run_generate(const GenerateOptions& options, const TrainerRanks& ranks = {});

}  // namespace hone
