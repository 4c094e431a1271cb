// Shows which tokens of a sample have loss.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace hone {

/// One token or several of one kind.
struct MaskPiece {
  std::string text;         ///< their bytes; may begin and end within a UTF-8 character
  bool supervised = false;  ///< whether they are targets of the loss
  int64_t tokens = 1;       ///< how many they are
  bool shown = true;        ///< false: they are only counted, and have no text
};

/// The text of the tokens, then a line with their counts. A line end is shown as ⏎ and still ends the line, a tab as ⇥,
/// other control and direction characters as their symbol or <U+XXXX>, invalid UTF-8 bytes as <0xNN>.
/// `color`: supervised text is green, the rest dim; otherwise supervised spans are in [[ ]].
std::string text_mask(std::span<const MaskPiece> pieces, bool color);

}  // namespace hone
