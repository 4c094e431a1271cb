#include "formats/fp8.h"

#include <cmath>

#include "core/base/dtype.h"

namespace hone {

namespace {

/// The nearest code of a magnitude below the largest number: `mantissa` bits, and an exponent that is 0 for numbers
/// below 2^least.
uint8_t code_of(float magnitude, int mantissa, int least) {
  const auto bits = std::bit_cast<uint32_t>(magnitude);
  const int dropped = 23 - mantissa;
  // A sum with 1.5 · 2^23 units of the last place of subnormal numbers is rounded to a whole number of them.
  if (magnitude < std::ldexp(1.0f, least)) {
    const float ones = std::ldexp(1.5f, 23 + least - mantissa);
    return static_cast<uint8_t>(std::bit_cast<uint32_t>(magnitude + ones) - std::bit_cast<uint32_t>(ones));
  }
  const uint32_t rounded = bits + ((1u << (dropped - 1)) - 1u) + (bits >> dropped & 1u);
  return static_cast<uint8_t>((rounded >> dropped) - (static_cast<uint32_t>(126 + least) << mantissa));
}

uint8_t saturated(float value, Fp8Code code, int mantissa, int least, uint8_t largest) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return 0x7f;
  const float magnitude = std::fabs(value);
  return static_cast<uint8_t>(sign | (magnitude >= largest_fp8(code) ? largest : code_of(magnitude, mantissa, least)));
}

}  // namespace

float e5m2_value(uint8_t code) {
  Float16 number;
  number.bits = static_cast<uint16_t>(code << 8);
  return static_cast<float>(number);
}

uint8_t e4m3_code(float value) { return saturated(value, Fp8Code::kE4m3, 3, -6, 0x7e); }
uint8_t e5m2_code(float value) { return saturated(value, Fp8Code::kE5m2, 2, -14, 0x7b); }

}  // namespace hone
