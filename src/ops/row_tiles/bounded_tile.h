// The size of a tile where the rows of all tokens at once would set the peak of memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hone {

/// The tokens of a tile of about `size` units, of which a token takes `each`: a multiple of 128, at least 128. 0, all
/// `tokens` at once, if they take up to `untiled` units, or none.
constexpr int64_t bounded_tile(int64_t tokens, int64_t each, int64_t untiled, int64_t size) {
  if (each == 0 || tokens <= untiled / each) return 0;
  return std::max(size / each / 128 * 128, int64_t{128});
}

}  // namespace hone
