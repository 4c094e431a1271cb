// Products in 8-bit floats: the recipes that say how operands are scaled, and the codes.
//
// An operand x is held as codes and float32 scales with x = code · scale. The scale of a group of elements is its
// largest magnitude over the largest number of the code, so that a group uses the code's whole range:
//
// - tensorwise: one scale for activations or their gradients, and one for a weight (arXiv:2209.05433).
// - rowwise: one for a row of each; a row of a weight [out, in] is an output feature (torchao's recipe of that name).
// - blockwise: one for 1 x 128 of activations or gradients, one for 128 x 128 of a weight (DeepSeek-V3,
//   arXiv:2412.19437).
//
// The gradient of a weight sums over tokens: both operands are activations or gradients whose rows are features, and
// whose elements are tokens.
//
// Codes are e4m3, except gradients of tensorwise, whose one scale needs the wider range of e5m2.
#pragma once

#include <bit>
#include <cstdint>

#include "core/base/host_device.h"

namespace hone {

enum class Fp8Recipe { kOff, kTensorwise, kRowwise, kBlockwise };

/// Which products with a weight take operands in 8-bit floats.
struct Fp8Products {
  Fp8Recipe recipe = Fp8Recipe::kOff;
  bool weight_gradient = false;  ///< that of the weight's gradient, too
};

/// OCP OFP8: sign, 4 or 5 bits of exponent, 3 or 2 of mantissa.
enum class Fp8Code : uint8_t { kE4m3, kE5m2 };

/// Elements that share a scale in blockwise, in each direction of a weight.
inline constexpr int64_t kFp8Block = 128;
/// Products take operands whose rows have a multiple of these elements.
inline constexpr int64_t kFp8Unit = 16;

/// The largest number of a code.
HONE_HOST_DEVICE constexpr float largest_fp8(Fp8Code code) { return code == Fp8Code::kE4m3 ? 448.0f : 57344.0f; }

/// Groups without a larger magnitude become zeros: the inverse of their scale would overflow.
inline constexpr float kLeastFp8Magnitude = 1e-30f;

/// The scale of a group: x = code · scale, code = x · inverse. Both are NaN where the group has NaN or an infinity.
struct Fp8Scale {
  float scale = 1.0f, inverse = 1.0f;
};

/// `magnitude` is the largest one of the group's float32 bits without their signs: as whole numbers these are ordered
/// as the numbers are, infinity and NaN above all.
HONE_HOST_DEVICE inline Fp8Scale fp8_scale(uint32_t magnitude, Fp8Code code) {
  constexpr uint32_t kInfinity = 0x7f800000u, kNaN = 0x7fc00000u;
  if (magnitude >= kInfinity) return {std::bit_cast<float>(kNaN), std::bit_cast<float>(kNaN)};
  const float largest = std::bit_cast<float>(magnitude);
  if (largest < kLeastFp8Magnitude) return {};
  return {largest / largest_fp8(code), largest_fp8(code) / largest};
}

/// The number of an e4m3 code; 0x7f and 0xff are NaN.
HONE_HOST_DEVICE inline float e4m3_value(uint32_t code) {
  if ((code & 0x7fu) == 0x7fu) return std::bit_cast<float>(0x7fc00000u);
  // The exponent's bias is 7, float32's 127: as a float32 with the same fields the number is 2^-120 of its value.
  return std::bit_cast<float>((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 0x1p120f;
}
/// The number of an e5m2 code: the upper byte of a float16.
float e5m2_value(uint8_t code);

/// The nearest code, ties to even; larger magnitudes than the code has become its largest, and NaN stays NaN.
uint8_t e4m3_code(float value);
uint8_t e5m2_code(float value);

}  // namespace hone
