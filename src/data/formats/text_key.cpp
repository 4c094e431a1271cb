#include "data/formats/text_key.h"

namespace hone {

namespace {

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// Size in bytes of the white space character at the start of `text`; 0 if it is another character.
size_t white_space(std::string_view text) {
  if (is_ascii_space(text.front())) return 1;
  // NO-BREAK SPACE, EN QUAD … HAIR SPACE, ZERO WIDTH SPACE, NARROW NO-BREAK SPACE, IDEOGRAPHIC SPACE
  if (text.starts_with("\xC2\xA0")) return 2;
  const auto last = static_cast<unsigned char>(text.size() < 3 ? 0 : text[2]);
  const bool general = text.starts_with("\xE2\x80") && ((last >= 0x80 && last <= 0x8B) || last == 0xAF);
  return general || text.starts_with("\xE3\x80\x80") ? 3 : 0;
}

}  // namespace

void TextKey::add(std::string_view piece) {
  bool empty = true;
  while (!piece.empty()) {
    if (const size_t space = white_space(piece)) {
      piece.remove_prefix(space);
      continue;
    }
    size_t end = 1;
    while (end < piece.size() && white_space(piece.substr(end)) == 0) ++end;
    if (!empty) hash_.update(" ");
    hash_.update(piece.substr(0, end));
    empty = false;
    piece.remove_prefix(end);
  }
  if (!empty) hash_.update(std::string_view("\0", 1));
}

}  // namespace hone
