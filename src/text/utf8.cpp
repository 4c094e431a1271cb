#include "text/utf8.h"

#include <array>
#include <cstring>

namespace hone {
namespace {

struct LeadByte {
  uint32_t continuation_bytes;
  uint8_t second_min, second_max;
};

/// The bytes allowed after a lead byte >= 0xC2 (Unicode table 3-7: no overlong forms, surrogates or values past
/// U+10FFFF).
LeadByte lead_byte(uint8_t lead) {
  if (lead < 0xE0) return {1, 0x80, 0xBF};
  if (lead < 0xF0) return {2, uint8_t(lead == 0xE0 ? 0xA0 : 0x80), uint8_t(lead == 0xED ? 0x9F : 0xBF)};
  return {3, uint8_t(lead == 0xF0 ? 0x90 : 0x80), uint8_t(lead == 0xF4 ? 0x8F : 0xBF)};
}

bool eight_ascii_bytes(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return (word & 0x8080808080808080u) == 0;
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t position) {
  const uint8_t lead = text[position];
  if (lead < 0x80) return {lead, 1, true};
  if (lead < 0xC2 || lead > 0xF4) return {kReplacementCharacter, 1, false};
  const LeadByte rule = lead_byte(lead);
  char32_t code = lead & (0x3F >> rule.continuation_bytes);
  for (uint32_t i = 1; i <= rule.continuation_bytes; ++i) {
    if (position + i >= text.size()) return {kReplacementCharacter, i, false};
    const uint8_t byte = text[position + i];
    const bool fits = i == 1 ? byte >= rule.second_min && byte <= rule.second_max : (byte & 0xC0) == 0x80;
    if (!fits) return {kReplacementCharacter, i, false};
    code = code << 6 | (byte & 0x3F);
  }
  return {code, rule.continuation_bytes + 1, true};
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    if (position + 8 <= text.size() && eight_ascii_bytes(text.data() + position)) {
      position += 8;
      continue;
    }
    const Utf8Step step = utf8_step(text, position);
    if (!step.valid) return position;
    position += step.length;
  }
  return position;
}

std::string repair_utf8(std::string bytes) {
  size_t position = valid_utf8_prefix(bytes);
  if (position == bytes.size()) return bytes;
  std::string repaired = bytes.substr(0, position);
  while (position < bytes.size()) {
    const Utf8Step step = utf8_step(bytes, position);
    append_utf8(repaired, step.code);
    position += step.length;
  }
  return repaired;
}

void append_utf8(std::string& out, char32_t code) {
  if (code < 0x80) {
    out += char(code);
  } else if (code < 0x800) {
    out += char(0xC0 | code >> 6);
    out += char(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += char(0xE0 | code >> 12);
    out += char(0x80 | (code >> 6 & 0x3F));
    out += char(0x80 | (code & 0x3F));
  } else {
    out += char(0xF0 | code >> 18);
    out += char(0x80 | (code >> 12 & 0x3F));
    out += char(0x80 | (code >> 6 & 0x3F));
    out += char(0x80 | (code & 0x3F));
  }
}

bool is_white_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

namespace {

constexpr int kAlphabetEnd = 256 + 68;

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int16_t, kAlphabetEnd> bytes;  // by code point; -1: not in the alphabet

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
