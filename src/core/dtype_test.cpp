#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hone {
namespace {

template <class T>
T from_bits(uint32_t bits) {
  T value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

template <class T>
void expect_every_value_survives() {
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const float wide = from_bits<T>(bits);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(T(wide)))) << bits;
    } else {
      EXPECT_EQ(T(wide).bits, bits);
    }
  }
}

TEST(BFloat16, EveryValueSurvivesFloat32) { expect_every_value_survives<BFloat16>(); }
TEST(Float16, EveryValueSurvivesFloat32SubnormalsIncluded) { expect_every_value_survives<Float16>(); }

/// Between two neighbours: below the middle rounds down, above it up, the middle to the even one.
template <class T>
void expect_rounds_to_nearest_even(uint32_t first, uint32_t last) {
  for (uint32_t bits = first; bits < last; ++bits) {
    const float low = from_bits<T>(bits), high = from_bits<T>(bits + 1);
    const float middle = low + (high - low) / 2;  // exact: float32 has at least 13 bits more
    const float below = std::nextafter(middle, low), above = std::nextafter(middle, high);
    EXPECT_EQ(T(middle).bits, bits + (bits & 1u)) << bits;
    EXPECT_EQ(T(below).bits, bits) << bits;
    EXPECT_EQ(T(above).bits, bits + 1) << bits;
    EXPECT_EQ(T(-middle).bits, (bits + (bits & 1u)) | 0x8000u) << bits;
  }
}

TEST(Float16, RoundsToNearestTiesToEven) { expect_rounds_to_nearest_even<Float16>(0, 0x7bff); }
TEST(BFloat16, RoundsToNearestTiesToEven) { expect_rounds_to_nearest_even<BFloat16>(0, 0x7f7f); }

TEST(Float16, HasTheValuesOfIeeeBinary16) {
  EXPECT_EQ(static_cast<float>(from_bits<Float16>(0x3c00)), 1.0f);
  EXPECT_EQ(static_cast<float>(from_bits<Float16>(0x0001)), 0x1p-24f);
  EXPECT_EQ(static_cast<float>(from_bits<Float16>(0x0400)), 0x1p-14f);
  EXPECT_EQ(static_cast<float>(from_bits<Float16>(0xfbff)), -65504.0f);
  EXPECT_EQ(Float16(-0.0f).bits, 0x8000);
}

TEST(Float16, OverflowsToInfinityFromTheMiddleOn) {
  EXPECT_EQ(Float16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Float16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(Float16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
}

TEST(Float16, UnderflowsToSignedZero) {
  EXPECT_EQ(Float16(0x1p-25f).bits, 0);  // the tie between 0 and 2^-24
  EXPECT_EQ(Float16(-0x1p-40f).bits, 0x8000);
}

TEST(BFloat16, NanStaysNanWhateverItsPayload) {
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(bits))))) << bits;
    EXPECT_TRUE(std::isnan(static_cast<float>(Float16(std::bit_cast<float>(bits))))) << bits;
  }
}

TEST(BFloat16, OverflowsToInfinityAndKeepsSigns) {
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_EQ(BFloat16(-0.0f).bits, 0x8000);
}

TEST(DType, SizesAndNamesAreThoseOfHuggingFace) {
  EXPECT_EQ(size_of(DType::kF64), 8u);
  EXPECT_EQ(size_of(DType::kI32), 4u);
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_EQ(size_of(DType::kBool), 1u);
  EXPECT_EQ(name_of(DType::kBF16), "bfloat16");
  EXPECT_EQ(name_of(DType::kF16), "float16");
}

}  // namespace
}  // namespace hone
