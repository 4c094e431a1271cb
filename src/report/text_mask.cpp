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

std::string joined(std::span<const MaskPiece> pieces) {
  std::string text;
  for (const MaskPiece& piece : pieces) text += piece.text;
  return visible(text);
}

// The text of pieces of one kind; if there are more than `most`, those in the middle are only counted.
std::string span_of(std::span<const MaskPiece> pieces, size_t most) {
  if (most == 0 || pieces.size() <= most) return joined(pieces);
  const size_t end = most / 2, begin = most - end;
  return joined(pieces.first(begin)) +
         fmt::format(" … {} tokens … ", with_commas(static_cast<int64_t>(pieces.size() - most))) +
         joined(pieces.last(end));
}

}  // namespace

std::string text_mask(std::span<const MaskPiece> pieces, const TextMaskOptions& options) {
  const size_t shown = options.max_tokens > 0 ? std::min(options.max_tokens, pieces.size()) : pieces.size();
  std::string text;
  // Join adjacent pieces of one kind first: a character may span several tokens.
  for (size_t i = 0; i < shown;) {
    const bool supervised = pieces[i].supervised;
    size_t end = i;
    while (end < shown && pieces[end].supervised == supervised) ++end;
    text += span_text(span_of(pieces.subspan(i, end - i), options.max_span), supervised, options.color);
    i = end;
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  const auto supervised =
      std::count_if(pieces.begin(), pieces.end(), [](const auto& piece) { return piece.supervised; });
  if (shown < pieces.size())
    text += fmt::format("… {} more tokens\n", with_commas(static_cast<int64_t>(pieces.size() - shown)));
  const double share =
      pieces.empty() ? 0 : 100.0 * static_cast<double>(supervised) / static_cast<double>(pieces.size());
  const std::string kind = options.color ? styled("supervised", Style::kGreen, true) : "[[supervised]]";
  return text + fmt::format("{}: {} of {} tokens ({:.1f}%)\n", kind, with_commas(supervised),
                            with_commas(static_cast<int64_t>(pieces.size())), share);
}

}  // namespace hone
