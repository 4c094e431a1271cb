// The byte-level alphabet: every byte is written as one printable character in tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hone {

/// The character of `byte`, as UTF-8: itself for printable Latin-1 bytes (33-126, 161-172, 174-255), U+0100 onwards
/// for the 68 others in ascending order (Radford et al. 2019, bytes_to_unicode).
const std::string& byte_character(uint8_t byte);

/// The bytes that `token` stands for, or nothing when a character of it is not of the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace hone
