// Characters of UTF-8 text, classified and mapped as by Python's str.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hone::jinja {

struct Character {
  char32_t code;
  size_t size;  ///< size in bytes
};

/// The character at byte `position` (< text.size()). An invalid byte is one character, U+FFFD.
Character character_at(std::string_view text, size_t position);

size_t count_characters(std::string_view text);

/// The first byte of character `index`; text.size() when there are fewer.
size_t byte_offset(std::string_view text, size_t index);

void append_utf8(std::string& text, char32_t code);

bool is_space(char32_t code);       ///< str.isspace, and \s of Python's regular expressions
bool is_line_break(char32_t code);  ///< where str.splitlines splits
bool is_printable(char32_t code);   ///< repr() does not escape it
bool is_alphabetic(char32_t code);
bool is_decimal(char32_t code);
bool is_digit(char32_t code);
bool is_numeric(char32_t code);
bool is_upper(char32_t code);
bool is_lower(char32_t code);
bool is_title(char32_t code);

/// The character in another case, as text since one character may become two.
std::string upper_case(char32_t code);
std::string lower_case(char32_t code);
std::string title_case(char32_t code);

/// Bytes [begin, end) of `text` without the white space (or the characters of `stripped`, if not null) at its ends.
struct Trimmed {
  size_t begin, end;
};
Trimmed trim(std::string_view text, const std::string_view* stripped, bool left, bool right);

}  // namespace hone::jinja
