// UTF-8: one step of a decoder that never reads past the end and resynchronises as Unicode recommends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hone {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

/// One character of a text: its code point and the bytes it takes. Of ill-formed UTF-8 `code` is U+FFFD, `valid` is
/// false and `length` is the maximal ill-formed subpart (Unicode 3.9, D93b), so that each such step is one U+FFFD.
struct Utf8Step {
  char32_t code;
  uint32_t length;
  bool valid;
};

/// The character at text[position]; position < text.size().
Utf8Step utf8_step(std::string_view text, size_t position);

/// Offset of the first ill-formed byte, or text.size() when the text is well-formed UTF-8.
size_t valid_utf8_prefix(std::string_view text);

/// `bytes` with every maximal ill-formed subpart replaced by U+FFFD.
std::string repair_utf8(std::string bytes);

/// Appends the UTF-8 form of a Unicode scalar value.
void append_utf8(std::string& out, char32_t code);

/// The Unicode property White_Space.
bool is_white_space(char32_t code);

}  // namespace hone
