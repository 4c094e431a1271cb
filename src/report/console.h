// Lines and one progress bar on a terminal or in a pipe.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "report/terminal.h"

namespace hone {

/// What the progress bar shows.
struct Progress {
  std::string label;  ///< "train", "eval", "tokenize"
  int64_t done = 0;
  int64_t total = 0;        ///< 0: unknown, only the count is shown
  std::string detail = {};  ///< e.g. "epoch 1.26/3"
  std::optional<double> seconds_left = {};
};

/// The bar of `progress` in at most `width` columns, without a line end.
std::string progress_bar(const Progress& progress, int width, bool color);

/// Writes lines; where the output is a terminal, keeps a progress bar below them, cleared before each line and drawn
/// again after it, in one write so that it does not flicker. Safe to call from several threads. Errors of the output
/// (a closed terminal, a full disk behind a redirection) are ignored: they must not stop a run.
class Console {
 public:
  explicit Console(Terminal terminal) : terminal_(terminal) {}
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// One or more lines; the last '\n' may be missing.
  void line(std::string_view text);

  /// Shows the bar. Redraws at most twenty times a second; in a pipe it writes nothing.
  void set_progress(Progress progress);

  /// Removes the bar from the screen.
  void clear_progress();

  bool color() const { return terminal_.color; }
  bool seen() const { return terminal_.seen; }
  bool interactive() const { return terminal_.interactive; }
  int width() const { return terminal_.width(); }

 private:
  std::string drawn_bar();
  void write(std::string_view text) const;

  const Terminal terminal_;
  std::mutex mutex_;
  std::optional<Progress> progress_;
  bool on_screen_ = false;
  std::chrono::steady_clock::time_point last_draw_{};
};

}  // namespace hone
