#include "core/base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace hone {

namespace {

/// Whether `c` is an embedding, override or isolate of the bidirectional algorithm (UAX #9).
bool turns_direction(char32_t c) { return (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069); }

}  // namespace

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = byte(at);
  const int length = lead < 0x80                   ? 1
                     : lead >= 0xC2 && lead < 0xE0 ? 2
                     : lead >= 0xE0 && lead < 0xF0 ? 3
                     : lead >= 0xF0 && lead < 0xF5 ? 4
                                                   : 0;
  if (length <= 1) {
    ++at;
    return length == 1 ? lead : kInvalidUtf8;
  }
  char32_t c = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0u) != 0x80u) return ++at, kInvalidUtf8;
    c = (c << 6) | (byte(at + i) & 0x3Fu);
  }
  static constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (c < kSmallest[length] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return ++at, kInvalidUtf8;
  at += length;
  return c;
}

std::string one_line(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (c == kInvalidUtf8 || c < 0x20 || c == 0x7F) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[begin]));
    } else if ((c >= 0x80 && c < 0xA0) || c == 0x2028 || c == 0x2029 || turns_direction(c)) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      result += text.substr(begin, at - begin);
    }
  }
  return result;
}

std::string short_line(std::string_view text) {
  constexpr size_t kMost = 300;
  return text.size() > kMost ? one_line(text.substr(0, kMost)) + "..." : one_line(text);
}

}  // namespace hone
