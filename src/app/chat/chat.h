// hone chat: a conversation with a model in the terminal, or from a pipe.
#pragma once

#include <string>

#include "app/inference/inference_model.h"

namespace hone {

// Lines from a terminal or a pipe, and Ctrl-C.

/// During its lifetime, Ctrl-C (SIGINT) is recorded instead of ending the program.
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

  /// Waits for the next line, returned without its line end; the last line may lack one. Ctrl-C discards typed text.
  Event next(std::string& line);

 private:
  int descriptor_;
  std::string buffer_;
  bool ended_ = false;
};

struct ChatOptions : InferenceOptions {
  std::string system;      ///< system message; "" = none
  int64_t max_length = 0;  ///< tokens of the whole conversation; 0: the model's context, at most 8192
  int input = 0;           ///< file descriptor for reading lines
};

/// Answers each line in the context of the conversation, rendered by the chat template. Reuses the key-value cache for
/// the common prefix of tokens. Lines that begin with / are commands (/help lists them). Answers are streamed to
/// standard output, other text goes to standard error. On a terminal Ctrl-C stops an answer, and after an error the
/// conversation continues; with a pipe an error ends the program. Returns the exit code.
int run_chat(const ChatOptions& options);

}  // namespace hone
