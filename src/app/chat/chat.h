// hone chat: a conversation with a model in the terminal, or from a pipe.
#pragma once

#include <string>

#include "app/inference_model.h"

namespace hone {

struct ChatOptions : InferenceOptions {
  std::string system;      ///< system message; "" = none
  int64_t max_length = 0;  ///< tokens of the whole conversation; 0: the model's context, at most 8192
  int input = 0;           ///< descriptor that lines are read from
};

/// Answers line after line with the conversation so far, as the chat template writes it; the key-value cache of the
/// turns before is used again as far as the tokens are the same. Lines that begin with / are commands (/help lists
/// them). Answers go to standard output as they come, everything else to standard error. On a terminal Ctrl-C stops an
/// answer, and an error is shown and the conversation goes on; from a pipe it ends the program. Returns the exit code.
int run_chat(const ChatOptions& options);

}  // namespace hone
