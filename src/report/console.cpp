#include "report/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "core/files/standard_output.h"
#include "report/humanise.h"

namespace hone {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(50);
constexpr std::string_view kClearLine = "\r\x1b[2K";
constexpr int kLongestBar = 40;
constexpr int kShortestBar = 8;

// Half cells for the completed part, so progress is visible in long runs.
std::string filled_bar(double share, int cells, bool color) {
  const int halves = static_cast<int>(std::floor(share * 2 * cells));
  std::string done = repeat("━", halves / 2);
  if (halves % 2 == 1) done += "╸";
  const std::string left = repeat("─", cells - (halves + 1) / 2);
  return styled(done, Style::kCyan, color) + styled(left, Style::kDim, color);
}

}  // namespace

std::string progress_bar(const Progress& progress, int width, bool color) {
  const double share =
      progress.total > 0
          ? std::clamp(static_cast<double>(progress.done) / static_cast<double>(progress.total), 0.0, 1.0)
          : 0.0;
  std::string text;
  if (progress.total > 0) {
    text = fmt::format("{:3.0f}%  {}/{}", std::floor(100 * share), with_commas(progress.done),
                       with_commas(progress.total));
  } else {
    text = with_commas(progress.done);
  }
  if (!progress.detail.empty()) text += "  " + one_line(progress.detail);
  if (progress.seconds_left) text += fmt::format("  {} left", human_duration(*progress.seconds_left));

  const std::string label = "  " + one_line(progress.label) + " ";
  const int room = width - display_width(label) - display_width(text) - 2;
  const bool with_bar = progress.total > 0 && room >= kShortestBar;
  const std::string bar = with_bar ? filled_bar(share, std::min(room, kLongestBar), color) + " " : "";
  return fit_width(styled(label, Style::kBold, color) + bar + text, width);
}

Console::~Console() { clear_progress(); }

void Console::line(std::string_view text) {
  const std::scoped_lock lock(mutex_);
  std::string out = on_screen_ ? std::string(kClearLine) : "";
  out += text;
  if (out.empty() || out.back() != '\n') out += '\n';
  if (on_screen_) out += drawn_bar();
  write(out);
}

void Console::set_progress(Progress progress) {
  if (!terminal_.interactive) return;
  const std::scoped_lock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  const bool other_phase = !progress_ || progress_->label != progress.label;
  const bool finished = progress.total > 0 && progress.done >= progress.total;
  progress_ = std::move(progress);
  if (on_screen_ && !other_phase && !finished && now - last_draw_ < kRedrawInterval) return;
  on_screen_ = true;
  write(std::string(kClearLine) + drawn_bar());
}

void Console::clear_progress() {
  const std::scoped_lock lock(mutex_);
  if (on_screen_) write(kClearLine);
  on_screen_ = false;
  progress_.reset();
}

std::string Console::drawn_bar() {
  last_draw_ = std::chrono::steady_clock::now();
  // A full line wraps on some terminals, and could then not be cleared.
  return progress_bar(*progress_, terminal_.width() - 1, terminal_.color);
}

void Console::require_written() const {
  if (failure_ != 0 && terminal_.fd != STDERR_FILENO) throw_output_failure(failure_);
}

void Console::write(std::string_view text) {
  const int error = write_to_descriptor(terminal_.fd, text);
  if (failure_ == 0) failure_ = error;
}

}  // namespace hone
