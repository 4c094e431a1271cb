// UTF-8: one step of a decoder that never reads past the end and resynchronises as Unicode recommends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// The byte-level alphabet: every byte is written as one printable character in tokenizer.json.

/// The character of `byte`, as UTF-8: itself for printable Latin-1 bytes (33-126, 161-172, 174-255), U+0100 onwards
/// for the 68 others in ascending order (Radford et al. 2019, bytes_to_unicode).
const std::string& byte_character(uint8_t byte);

/// The bytes that `token` stands for, or nothing when a character of it is not of the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace hone
