// A number of a user or a file, which is read as a double, as ops use it: in float32.
#pragma once

#include <cmath>
#include <limits>

namespace hone {

/// The float32 that is nearest to `value`; infinite beyond the largest. A bound that the double keeps may not hold for
/// it: 0.99999999 is 1, 1e-50 is 0.
inline float as_float32(double value) {
  constexpr double kOverflow = 0x1.ffffffp127;  // from here on rounding is to infinity
  if (std::abs(value) >= kOverflow)
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value > 0 ? 1 : -1));
  return static_cast<float>(value);
}

/// Whether a probability, or a noise's amplitude, is in [0, 1), as a double and in float32; false for NaN.
inline bool is_below_one(double value) { return value >= 0 && value < 1 && as_float32(value) < 1; }

/// Whether it is above 0 and finite, as a double and in float32; false for NaN.
inline bool is_positive(double value) { return value > 0 && as_float32(value) > 0 && std::isfinite(as_float32(value)); }

}  // namespace hone
