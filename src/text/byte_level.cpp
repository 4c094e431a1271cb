#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace hone {
namespace {

constexpr int kAlphabetEnd = 256 + 68;

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int16_t, kAlphabetEnd> bytes;  // by code point; -1: not of the alphabet

  Alphabet() {
    bytes.fill(-1);
    int next_stand_in = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const int code = printable ? byte : next_stand_in++;
      append_utf8(characters[byte], char32_t(code));
      bytes[code] = int16_t(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

}  // namespace

const std::string& byte_character(uint8_t byte) { return alphabet().characters[byte]; }

std::optional<std::string> byte_level_bytes(std::string_view token) {
  std::string bytes;
  for (size_t position = 0; position < token.size();) {
    const Utf8Step step = utf8_step(token, position);
    if (step.code >= kAlphabetEnd || alphabet().bytes[step.code] < 0) return std::nullopt;
    bytes += char(alphabet().bytes[step.code]);
    position += step.length;
  }
  return bytes;
}

}  // namespace hone
