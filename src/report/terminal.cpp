#include "report/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/files/standard_output.h"

namespace hone {
namespace {

constexpr int kDefaultWidth = 100;

struct Range {
  char32_t first, last;
};

// Unicode 15: the blocks of combining marks, format characters and variation selectors.
constexpr Range kZeroWidth[] = {{0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x064B, 0x065F},
                                {0x200B, 0x200F}, {0x202A, 0x202E}, {0x2060, 0x2064}, {0x2066, 0x206F},
                                {0x20D0, 0x20F0}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}};

// Unicode 15, EastAsianWidth W and F by block, and the emoji blocks.
constexpr Range kWide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0xA4CF},   {0xAC00, 0xD7A3},
                           {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},
                           {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF}, {0x1F900, 0x1FAFF}, {0x20000, 0x3FFFD}};

template <size_t N>
bool in_ranges(char32_t c, const Range (&ranges)[N]) {
  return std::any_of(std::begin(ranges), std::end(ranges), [c](Range r) { return c >= r.first && c <= r.last; });
}

int code_point_width(char32_t c) {
  if (c == kInvalidUtf8) return 1;
  if (c < 0x20 || (c >= 0x7F && c < 0xA0) || in_ranges(c, kZeroWidth)) return 0;
  return in_ranges(c, kWide) ? 2 : 1;
}

// Length of the colour sequence (ESC [ parameters letter) at `at`, 0 if there is none.
size_t escape_length(std::string_view text, size_t at) {
  if (text.substr(at, 2) != "\x1b[") return 0;
  size_t end = at + 2;
  while (end < text.size() && (text[end] == ';' || (text[end] >= '0' && text[end] <= '9'))) ++end;
  return end < text.size() ? end + 1 - at : 0;
}

}  // namespace

Terminal Terminal::of(int fd) {
  Terminal terminal{.fd = fd};
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  terminal.interactive = isatty(fd) == 1 && !OutputCapture::active() && std::string_view(term ? term : "") != "dumb";
  terminal.color = terminal.interactive && (!no_color || !*no_color);
  return terminal;
}

int Terminal::width() const {
  if (fixed_width > 0) return fixed_width;
  winsize size{};
  if (interactive && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultWidth;
}

std::string styled(std::string_view text, Style style, bool color) {
  static constexpr std::string_view kCodes[] = {"", "1", "2", "31", "32", "33", "36"};
  const std::string_view code = kCodes[static_cast<size_t>(style)];
  if (!color || code.empty() || text.empty()) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

int display_width(std::string_view text) {
  int width = 0;
  for (size_t at = 0; at < text.size();) {
    if (const size_t escape = escape_length(text, at)) {
      at += escape;
    } else {
      width += code_point_width(next_code_point(text, at));
    }
  }
  return width;
}

std::string fit_width(std::string_view text, int columns) {
  if (display_width(text) <= columns) return std::string(text);
  std::string result;
  int width = 0;
  bool full = false;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (const size_t escape = escape_length(text, at)) {
      at += escape;
      result += text.substr(begin, escape);
      continue;
    }
    const int step = code_point_width(next_code_point(text, at));
    if (full) continue;
    if (width + step > columns - 1) {
      full = true;
      if (columns > 0) result += "…";
      continue;
    }
    width += step;
    result += text.substr(begin, at - begin);
  }
  return result;
}

std::string wrap(std::string_view text, int columns, std::string_view indent) {
  std::string result;
  for (const std::string& whole : split_lines(text)) {
    if (!result.empty()) result += '\n';
    std::string_view line = whole;
    std::string_view margin;
    while (display_width(line) + display_width(margin) > columns) {
      size_t cut = 0;  // after the last space that fits, or the first one
      for (size_t space = line.find(' ', 1); space != std::string_view::npos; space = line.find(' ', space + 1)) {
        const bool fits = display_width(line.substr(0, space)) + display_width(margin) <= columns;
        if (!fits && cut > 0) break;
        cut = space;
        if (!fits) break;
      }
      if (cut == 0 || line.find_first_not_of(' ', cut) == std::string_view::npos) break;
      result.append(margin).append(line.substr(0, cut)).append("\n");
      line.remove_prefix(line.find_first_not_of(' ', cut));
      margin = indent;
    }
    result.append(margin).append(line);
  }
  return result;
}

std::string pad_right(std::string_view text, int columns) {
  return std::string(text) + std::string(static_cast<size_t>(std::max(0, columns - display_width(text))), ' ');
}

std::string pad_left(std::string_view text, int columns) {
  return std::string(static_cast<size_t>(std::max(0, columns - display_width(text))), ' ') + std::string(text);
}

std::string repeat(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

std::string strip_color(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (const size_t escape = escape_length(text, at)) {
      at += escape;
    } else {
      result += text[at++];
    }
  }
  return result;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return lines;
}

}  // namespace hone
