// Number formats of tensors, and conversions between them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hone {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kU8, kI8, kBool, kI16 };

/// Bytes of one element.
size_t size_of(DType dtype);

/// The name in Hugging Face configs: "float32", "bfloat16", …
std::string_view name_of(DType dtype);

/// The upper half of a float32: 8 bits of exponent, 7 of mantissa.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  /// Rounds to nearest, ties to even; NaN stays NaN.
  explicit BFloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? static_cast<uint16_t>((u >> 16) | 0x40u)
                  : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// IEEE binary16, only for storage.
struct Float16 {
  uint16_t bits;

  Float16() = default;
  /// Rounds to nearest, ties to even; overflows to infinity.
  explicit Float16(float value);
  operator float() const;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

/// Calls f with a value-initialised element of `dtype`, one of the floating types of activations and weights.
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  return dtype == DType::kBF16 ? f(BFloat16{}) : f(float{});
}

}  // namespace hone
