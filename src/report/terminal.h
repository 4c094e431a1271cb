// The capabilities of the output: terminal or not, width, colour; and the width of text on it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/printable.h"

namespace hone {

/// The target of console output and its capabilities.
struct Terminal {
  int fd = 1;
  bool interactive = false;  ///< a terminal that can redraw its last line
  bool color = false;        ///< colour escape sequences are allowed
  int fixed_width = 0;       ///< columns; 0: query the terminal at each use
  bool seen = true;          ///< false: nobody reads the output

  /// Inspects `fd`. Plain lines if it is not a terminal, is captured (core/files/standard_output.h), or if TERM=dumb. A
  /// non-empty NO_COLOR switches colour off (https://no-color.org), but not redrawing.
  static Terminal of(int fd);

  /// Present columns of the terminal; 100 if it is not a terminal or does not report them.
  int width() const;
  /// The maximum width of tables: the columns of a terminal, else 0 (no limit).
  int table_width() const { return interactive ? width() : 0; }
};

enum class Style { kPlain, kBold, kDim, kRed, kGreen, kYellow, kCyan };

/// `text` between the escape sequences of `style`, or `text` itself when `color` is false.
std::string styled(std::string_view text, Style style, bool color);

/// Number of columns of `text`: colour sequences and combining marks have none, East Asian wide characters and emoji
/// two.
int display_width(std::string_view text);

/// `text` truncated to `columns`, with an ellipsis at the end if truncated; keeps colour sequences whole.
std::string fit_width(std::string_view text, int columns);

/// `text` with line breaks between words, so no line has more than `columns` if its words allow that. Added lines start
/// with `indent`. White space within lines stays.
std::string wrap(std::string_view text, int columns, std::string_view indent);

/// `text` padded with spaces to `columns`; never truncated.
std::string pad_right(std::string_view text, int columns);
std::string pad_left(std::string_view text, int columns);

/// `text`, `count` times.
std::string repeat(std::string_view text, int count);

/// `text` without its colour sequences.
std::string strip_color(std::string_view text);

/// Lines of text without their line ends.
std::vector<std::string> split_lines(std::string_view text);

}  // namespace hone
