// hone generate: answers of a model, with or without an adapter, to one prompt or to a file of them.
#pragma once

#include <optional>
#include <string>

#include "infer/sampling.h"

namespace hone {

/// What the command line says of sampling; the rest is as the model's generation_config.json has it.
struct SamplingOverrides {
  std::optional<int64_t> max_new_tokens, top_k;
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<bool> do_sample;  ///< unset: true if temperature, top_k or top_p is given
  std::optional<uint64_t> seed;

  SamplingOptions apply(SamplingOptions options) const;
};

/// Exactly one of prompt and input is given.
struct GenerateOptions {
  std::string model;          ///< folder, or Hugging Face id in the local cache
  std::string adapter;        ///< folder of an adapter; "" = none
  std::string prompt;         ///< a text: the user's message, or with raw the start of a text
  std::string input;          ///< JSONL, each row {"prompt": text or messages} or {"messages": [...]}
  std::string output = "-";   ///< of an input: JSONL to write; "-" = standard output
  std::string system;         ///< system message of chats that have none
  std::string chat_template;  ///< a Jinja file to use instead of the model's template; "" = the model's
  bool raw = false;           ///< prompts are continued as they are, without chat template
  SamplingOverrides sampling;
  int64_t batch_size = 64;  ///< sequences that run at once
  std::string device = "auto";
  std::string dtype;   ///< float32 or bfloat16; "" = what the model's config says, else bfloat16
  int threads = 0;     ///< 0: all cores
  bool force = false;  ///< replace the output file
};

/// One prompt: streams the answer to standard output. A file: writes each row with `generated_text`, `finish_reason`
/// ("stop" or "length"), `prompt_tokens` and `generated_tokens` added, in the order of the input. A last message of
/// the assistant is the expected answer: it is not shown to the model. An answer ends where the model's context does.
/// Returns the exit code. UserError: neither or both of prompt and input, no tokenizer, no chat template, a prompt that
/// is empty or fills the model's context, options out of range.
int run_generate(const GenerateOptions& options);

}  // namespace hone
