// Bar charts for a terminal: horizontal bars for counts.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace hone {

struct Bar {
  std::string label;
  int64_t count = 0;
  std::string note = {};  ///< after the count
};

/// One line per bar, with right-aligned labels. The longest bar has the length that `width` columns allow (at least
/// 10), in eighths of a column; a count above 0 is always visible. Each line ends in '\n'.
///    100–199  ███████████▌ 1,204
std::string bar_chart(std::span<const Bar> bars, int width, bool color);

}  // namespace hone
