#include "report/text_mask.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/humanise.h"
#include "report/terminal.h"

namespace hone {
namespace {

// Characters that reorder or hide text: they must be visible in the mask.
bool is_hidden(char32_t c) {
  return (c >= 0x80 && c < 0xA0) || (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || c == 0x00AD;
}

std::string visible(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    if (c == kInvalidUtf8) {
      result += fmt::format("<0x{:02X}>", static_cast<unsigned char>(text[begin]));
    } else if (c == '\n') {
      result += "⏎\n";
    } else if (c == '\t') {
      result += "⇥";
    } else if (c < 0x20 || c == 0x7F) {
      // U+2400 and up are the symbols of the control characters.
      const unsigned symbol = c == 0x7F ? 0x21 : static_cast<unsigned>(c);
      result += {static_cast<char>(0xE2), static_cast<char>(0x90), static_cast<char>(0x80 | symbol)};
    } else if (is_hidden(c)) {
      result += fmt::format("<U+{:04X}>", static_cast<unsigned>(c));
    } else {
      result += text.substr(begin, at - begin);
    }
  }
  return result;
}

// Styled line by line, so a pager or a truncated screen does not stay green.
std::string span_text(const std::string& text, bool supervised, bool color) {
  if (!color) return supervised ? "[[" + text + "]]" : text;
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    result += styled(text.substr(at, end - at), supervised ? Style::kGreen : Style::kDim, true);
    if (end < text.size()) result += '\n';
    at = end + 1;
  }
  return result;
}

/// The text of pieces of one kind.
std::string joined(std::span<const MaskPiece> pieces) {
  std::string result, text;
  for (const MaskPiece& piece : pieces) {
    text += piece.text;
    if (piece.shown) continue;
    result += visible(text) + fmt::format(" … {} tokens … ", with_commas(piece.tokens));
    text.clear();
  }
  return result + visible(text);
}

}  // namespace

std::string text_mask(std::span<const MaskPiece> pieces, bool color) {
  std::string text;
  int64_t tokens = 0, supervised = 0;
  // Join adjacent pieces of one kind first: a character may span several tokens.
  for (size_t i = 0; i < pieces.size();) {
    const bool learnt = pieces[i].supervised;
    size_t end = i;
    for (; end < pieces.size() && pieces[end].supervised == learnt; ++end) {
      tokens += pieces[end].tokens;
      if (learnt) supervised += pieces[end].tokens;
    }
    text += span_text(joined(pieces.subspan(i, end - i)), learnt, color);
    i = end;
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  const double share = tokens == 0 ? 0 : 100.0 * static_cast<double>(supervised) / static_cast<double>(tokens);
  const std::string kind = color ? styled("supervised", Style::kGreen, true) : "[[supervised]]";
  return text +
         fmt::format("{}: {} of {} tokens ({:.1f}%)\n", kind, with_commas(supervised), with_commas(tokens), share);
}

}  // namespace hone
