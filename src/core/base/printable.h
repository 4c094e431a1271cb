// Untrusted text for a terminal or a log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hone {

/// The plural ending of a noun: "{} row{}", n, plural(n).
inline const char* plural(int64_t n) { return n == 1 ? "" : "s"; }

/// `text` with the letters of ASCII in lower case.
std::string in_lower_case(std::string text);

/// Decodes the UTF-8 character at `at` and moves `at` past it; an invalid byte returns -1 and moves `at` by one.
char32_t next_code_point(std::string_view text, size_t& at);
inline constexpr char32_t kInvalidUtf8 = static_cast<char32_t>(-1);

/// `text` on one line: control characters, colour sequences, characters that change the text direction, and invalid
/// UTF-8 become visible ("\n", "\x1b", "\u202e"), so untrusted names and messages cannot corrupt the screen.
std::string one_line(std::string_view text);
/// The same of a message that may be long: of its first 300 bytes, then "...".
std::string short_line(std::string_view text);

}  // namespace hone
