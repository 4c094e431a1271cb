// Divides the work of matrix products into tasks.
#pragma once

#include <cstdint>

namespace hone {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Extent of one of equal parts with at most `most` each (before rounding up), a multiple of `unit`.
inline int64_t even_part(int64_t extent, int64_t most, int64_t unit) {
  return ceil_div(ceil_div(extent, ceil_div(extent, most)), unit) * unit;
}

}  // namespace hone
