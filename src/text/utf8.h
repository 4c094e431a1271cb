// UTF-8: a decoder step that never reads past the end and resynchronises as Unicode recommends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hone {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

/// One character of a text: its code point and its size in bytes. For ill-formed UTF-8 `code` is U+FFFD, `valid` is
/// false and `length` is the maximal ill-formed subpart (Unicode 3.9, D93b), so each such step is one U+FFFD.
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

// The byte-level alphabet: tokenizer.json writes every byte as one printable character.

/// The character of `byte`, as UTF-8: itself for printable Latin-1 bytes (33-126, 161-172, 174-255), U+0100 and up for
/// the 68 others in ascending order (Radford et al. 2019, bytes_to_unicode).
const std::string& byte_character(uint8_t byte);

/// The bytes of `token`, or nothing when one of its characters is not in the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace hone
