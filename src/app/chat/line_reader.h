// Lines that a person types or a pipe delivers, and Ctrl-C between and within them.
#pragma once

#include <string>

namespace hone {

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

}  // namespace hone
