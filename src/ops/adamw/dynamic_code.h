// 8-bit codes of the optimizer's moments, in blocks of 256 elements that share a scale. The codes are dense where
// moments are: seven decades, each with twice as many values as the one below. Source: Dettmers et al., "8-bit
// Optimizers via Block-wise Quantization" (arXiv:2110.02861), "dynamic tree quantization".
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/base/host_device.h"

namespace hone {

/// Elements that share a scale: the value with the largest magnitude, whose code is exactly 1.
inline constexpr int64_t kMomentBlock = 256;

/// The tree of magnitudes in [0, 1] in increasing order: 0, the centres of equal parts of seven decades, 1. [0.1, 1)
/// has 2^kTop parts, [0.01, 0.1) half as many, and so on. Signed codes use one bit for the sign.
template <bool kSigned>
struct DynamicTree {
  static constexpr int kTop = kSigned ? 6 : 7;
  /// Added to the index of a magnitude, so that its leading bit is the decade.
  static constexpr int kShift = kSigned ? 0 : 1;
  static constexpr int kLast = kSigned ? 128 : 255;  ///< index of 1

  static constexpr double magnitude(int index) {
    if (index == 0 || index == kLast) return index == 0 ? 0.0 : 1.0;
    const int leaf = index + kShift, decade = std::bit_width(static_cast<unsigned>(leaf)) - 1;
    double value = 0.1 + 0.9 * ((leaf + 0.5) / (1 << decade) - 1.0);
    for (int d = decade; d < kTop; ++d) value /= 10.0;
    return value;
  }
};

/// The value of each byte. Signed: 0 to 127, and 256 - i for the negative of the i-th magnitude; 128 is 1. The first
/// kLast + 1 values are the magnitudes.
template <bool kSigned>
constexpr std::array<float, 256> dynamic_values() {
  using Tree = DynamicTree<kSigned>;
  std::array<float, 256> values{};
  for (int i = 0; i <= Tree::kLast; ++i) values[static_cast<size_t>(i)] = static_cast<float>(Tree::magnitude(i));
  for (int i = Tree::kLast + 1; i < 256; ++i) values[static_cast<size_t>(i)] = -values[static_cast<size_t>(256 - i)];
  return values;
}

/// A key ordered by magnitude; to_scale() returns the value with its sign, with infinity as the largest number.
HONE_HOST_DEVICE inline uint32_t magnitude_key(float value) { return std::rotl(std::bit_cast<uint32_t>(value), 1); }
HONE_HOST_DEVICE inline float to_scale(uint32_t key) {
  constexpr uint32_t kLargest = 0x7f7fffffu << 1;
  return std::bit_cast<float>(std::rotr(key >= (kLargest | 1u) ? kLargest | (key & 1u) : key, 1));
}

/// The byte for value / scale, |value| <= |scale|: the code below or above, chosen with probabilities such that the
/// mean is the value. `random` has 16 bits; `values` is dynamic_values<kSigned>(). A positive unsigned value becomes at
/// least the least code above 0, since moments are used as divisors.
template <bool kSigned>
HONE_HOST_DEVICE inline uint8_t dynamic_code(float value, float scale, uint32_t random, const float* values) {
  using Tree = DynamicTree<kSigned>;
  if (value == 0.0f || scale == 0.0f) return 0;
  const float ratio = value / scale;
  const bool negative = kSigned && ratio < 0.0f;
  float magnitude = negative ? -ratio : ratio;
  magnitude = magnitude < 1.0f ? magnitude : 1.0f;
  int decade = Tree::kTop;
  float scaled = magnitude;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int d = 0; d < 6; ++d) {
    if (scaled < 0.1f) {
      scaled *= 10.0f;
      --decade;
    }
  }
  // The approximate position in the tree; the table decides.
  const float leaf = static_cast<float>(1 << decade) * (1.0f + (scaled - 0.1f) * (1.0f / 0.9f)) - 0.5f;
  int index = static_cast<int>(leaf) - Tree::kShift;
  index = index < 0 ? 0 : index > Tree::kLast - 1 ? Tree::kLast - 1 : index;
  if (magnitude < values[index]) {
    --index;
  } else if (index < Tree::kLast - 1 && magnitude >= values[index + 1]) {
    ++index;
  }
  const float below = values[index], share = (magnitude - below) / (values[index + 1] - below);
  index += static_cast<float>(random & 0xffffu) * 0x1p-16f < share;
  if constexpr (!kSigned) return static_cast<uint8_t>(index == 0 ? 1 : index);
  if (!negative) return static_cast<uint8_t>(index);
  return static_cast<uint8_t>(256 - (index < 127 ? index : 127));  // -1 has no code
}

}  // namespace hone
