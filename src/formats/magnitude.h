// The largest magnitude of a group of numbers, from which formats derive the group's scale.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace hone {

/// The float32 bits of the largest of n magnitudes. Without their sign, floats are ordered as the whole numbers of
/// their bits are, infinity and NaN above all.
inline uint32_t magnitude_bits(const float* values, int64_t n) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<int32_t>(values[i]) & INT32_MAX);
  return static_cast<uint32_t>(largest);
}

}  // namespace hone
