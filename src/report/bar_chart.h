// Horizontal bars for a terminal: how many of what.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace hone {

struct Bar {
  std::string label;
  int64_t count = 0;
  std::string note = {};  ///< behind the count
};

/// A line for each bar, labels aligned on the right, the longest bar as long as `width` columns leave room for (at
/// least 10), in eighths of a column; what is not 0 shows. Each line ends in '\n'.
///    100–199  ███████████▌ 1,204
std::string bar_chart(std::span<const Bar> bars, int width, bool color);

}  // namespace hone
