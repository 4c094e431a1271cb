// Shows which tokens of a sample have loss.
#pragma once

#include <span>
#include <string>

namespace hone {

struct MaskPiece {
  std::string text;         ///< the bytes of the token; may be a part of a UTF-8 character
  bool supervised = false;  ///< whether it is a target of the loss
};

struct TextMaskOptions {
  bool color = false;     ///< supervised text green, the rest dim; otherwise supervised spans are in [[ ]]
  size_t max_tokens = 0;  ///< 0: all; otherwise the rest is only counted
  size_t max_span = 0;    ///< 0: no limit; a longer span of one kind keeps only its beginning and end
};

/// The text of the tokens, then a line with their counts. A line end is shown as ⏎ and still ends the line, a tab as ⇥,
/// other control and direction characters as their symbol or <U+XXXX>, invalid UTF-8 bytes as <0xNN>.
std::string text_mask(std::span<const MaskPiece> pieces, const TextMaskOptions& options);

}  // namespace hone
