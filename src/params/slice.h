// Slice: a range of the elements of a parameter or of a bucket.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hone {

/// Elements [begin, begin + count).
struct Slice {
  int64_t begin = 0, count = 0;

  int64_t end() const { return begin + count; }
  /// The intersection; count 0 if empty.
  Slice intersect(Slice other) const {
    const int64_t first = std::max(begin, other.begin), last = std::min(end(), other.end());
    return {first, std::max<int64_t>(last - first, 0)};
  }
  bool operator==(const Slice&) const = default;
};

}  // namespace hone
