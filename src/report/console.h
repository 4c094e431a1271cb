// Writes lines and one progress bar to a terminal or a pipe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "report/terminal.h"

namespace hone {

/// The contents of the progress bar.
struct Progress {
  std::string label;  ///< "train", "eval", "tokenize"
  int64_t done = 0;
  int64_t total = 0;        ///< 0: unknown, shows only the count
  std::string detail = {};  ///< e.g. "epoch 1.26/3"
  std::optional<double> seconds_left = {};
};

/// The bar of `progress` in at most `width` columns, without a line end.
std::string progress_bar(const Progress& progress, int width, bool color);

/// Writes lines. On a terminal, keeps a progress bar below them: clears it before each line and draws it again after
/// it, in one write to avoid flicker. Thread-safe. Errors of the output (a closed terminal, a full disk behind a
/// redirection) must not stop a run: they are kept until require_written().
class Console {
 public:
  explicit Console(Terminal terminal) : terminal_(terminal) {}
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Writes one or more lines; the last '\n' may be missing.
  void line(std::string_view text);

  /// Sets the bar. Redraws at most twenty times per second; writes nothing to a pipe.
  void set_progress(Progress progress);

  /// Removes the bar from the screen.
  void clear_progress();

  /// Throws OutputLost or ReaderGone if some of the output could not be written, unless it is standard error. For
  /// commands whose result is what they print.
  void require_written() const;
  /// The errno of the first failure; 0 if all was written.
  int failure() const { return failure_; }

  bool color() const { return terminal_.color; }
  bool seen() const { return terminal_.seen; }
  bool interactive() const { return terminal_.interactive; }
  int width() const { return terminal_.width(); }

 private:
  std::string drawn_bar();
  void write(std::string_view text);

  const Terminal terminal_;
  std::mutex mutex_;
  std::optional<Progress> progress_;
  bool on_screen_ = false;
  std::atomic<int> failure_ = 0;
  std::chrono::steady_clock::time_point last_draw_{};
};

}  // namespace hone
