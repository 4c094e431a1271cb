// What the output can show: is it a terminal, how wide, may it be coloured; and the width of text on it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/printable.h"

namespace hone {

/// Where console output goes and what it may contain.
struct Terminal {
  int fd = 1;
  bool interactive = false;  ///< a terminal that can redraw its last line
  bool color = false;        ///< escape sequences for colour may be written
  int fixed_width = 0;       ///< columns; 0: ask the terminal at each use
  bool seen = true;          ///< false: what goes there is for nobody

  /// Inspects `fd`. Not a terminal, or TERM=dumb: plain lines. A non-empty NO_COLOR switches colour off
  /// (https://no-color.org), redrawing stays.
  static Terminal of(int fd);

  /// Columns of the terminal now; 100 when it is not a terminal or does not say.
  int width() const;
  /// The columns that tables have to fit: those of a terminal, 0 (any number) elsewhere.
  int table_width() const { return interactive ? width() : 0; }
};

enum class Style { kPlain, kBold, kDim, kRed, kGreen, kYellow, kCyan };

/// `text` between the escape sequences of `style`, or `text` itself when `color` is false.
std::string styled(std::string_view text, Style style, bool color);

/// Columns that `text` takes: colour sequences take none, combining marks none, East Asian wide and emoji two.
int display_width(std::string_view text);

/// `text` cut to `columns`, the last of them an ellipsis when something was cut; colour sequences are kept whole.
std::string fit_width(std::string_view text, int columns);

/// `text` with line ends between words so that no line has more than `columns`, where its words allow that; lines that
/// are added begin with `indent`. White space within lines stays.
std::string wrap(std::string_view text, int columns, std::string_view indent);

/// `text` padded with spaces to `columns` (never cut).
std::string pad_right(std::string_view text, int columns);
std::string pad_left(std::string_view text, int columns);

/// `text` without its colour sequences.
std::string strip_color(std::string_view text);

/// Lines of text without their line ends.
std::vector<std::string> split_lines(std::string_view text);

/// Two blocks of lines beside each other, `gap` columns apart.
std::string side_by_side(std::string_view left, std::string_view right, int gap = 4);

}  // namespace hone
