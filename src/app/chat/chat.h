// hone chat: a conversation with a model in the terminal, or from a pipe.
#pragma once

#include <string>

#include "app/inference_model.h"

namespace hone {

// Lines that a person types or a pipe delivers, and Ctrl-C between and within them.

/// While it lives, Ctrl-C (SIGINT) is remembered instead of ending the program.
class CtrlC {
 public:
  CtrlC();
  ~CtrlC();
  CtrlC(const CtrlC&) = delete;
  CtrlC& operator=(const CtrlC&) = delete;

  /// Whether it was pressed since the last take().
  static bool pressed();
  static bool take();
};

class LineReader {
 public:
  explicit LineReader(int descriptor) : descriptor_(descriptor) {}

  enum class Event { kLine, kEnd, kCtrlC };

  /// Waits for the next line, without its end; a last line needs none. What was typed before Ctrl-C is gone.
  Event next(std::string& line);

 private:
  int descriptor_;
  std::string buffer_;
  bool ended_ = false;
};

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
