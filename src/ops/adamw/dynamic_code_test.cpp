#include "ops/adamw/dynamic_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/philox.h"

namespace hone {
namespace {

template <bool kSigned>
void expect_a_ladder() {
  auto values = dynamic_values<kSigned>();
  const float* largest = std::max_element(values.begin(), values.end());
  EXPECT_EQ(*largest, 1.0f);
  std::sort(values.begin(), values.end());
  for (size_t i = 1; i < values.size(); ++i) ASSERT_LT(values[i - 1], values[i]);
  EXPECT_FLOAT_EQ(values[254], kSigned ? 0.1f + 0.9f * 63.5f / 64 : 0.1f + 0.9f * 127.5f / 128);
  EXPECT_FLOAT_EQ(values[0], kSigned ? -values[254] : 0.0f);
  EXPECT_NEAR(values[kSigned ? 128 : 1], kSigned ? 5.5e-7f : 3.25e-7f, 1e-12f) << "the least above 0";
}

TEST(DynamicCode, ValuesAreALadderFromTheSmallestDecadeToOne) {
  expect_a_ladder<true>();
  expect_a_ladder<false>();
}

/// Every value, and values between two codes, become one of the adjacent codes, with the right probabilities.
template <bool kSigned>
void expect_neighbours() {
  const auto values = dynamic_values<kSigned>();
  auto sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const float scale = -0.37f * (kSigned ? 1.0f : -1.0f);
  for (size_t i = 0; i + 1 < sorted.size(); ++i) {
    for (double share : {0.0, 0.25, 0.5, 0.9}) {
      const double ratio = sorted[i] + share * (static_cast<double>(sorted[i + 1]) - sorted[i]);
      const auto value = static_cast<float>(ratio * static_cast<double>(scale));
      double sum = 0;
      constexpr uint32_t kDraws = 64;  // evenly spaced: the mean is exact to a 64th of the distance
      for (uint32_t draw = 0; draw < kDraws; ++draw) {
        const uint8_t code = dynamic_code<kSigned>(value, scale, draw << 10 | 0x1ffu, values.data());
        const auto got = static_cast<double>(values[code]);
        const bool exact =
            share == 0.0 && (got == sorted[i - (i > 0)] || got == sorted[i]);  // value / scale is rounded
        ASSERT_TRUE(exact || got == static_cast<double>(sorted[i]) || got == static_cast<double>(sorted[i + 1]))
            << i << " + " << share << ": " << got;
        sum += got;
      }
      if (!kSigned && i == 0) continue;  // rounds up
      ASSERT_NEAR(sum / kDraws, ratio, (static_cast<double>(sorted[i + 1]) - sorted[i]) / 32 + 1e-7 * std::abs(ratio))
          << i << " + " << share;
    }
  }
}

TEST(DynamicCode, RoundsToNeighboursWithoutBias) {
  expect_neighbours<true>();
  expect_neighbours<false>();
}

TEST(DynamicCode, TheLargestIsExactAndNothingIsLostToZeroUnsigned) {
  const auto with_sign = dynamic_values<true>(), without = dynamic_values<false>();
  PhiloxSequence random(5);
  for (int i = 0; i < 1000; ++i) {
    const float value = random.normal() * std::exp(20 * random.normal());
    const uint32_t word = random.next();
    EXPECT_EQ(with_sign[dynamic_code<true>(value, value, word, with_sign.data())], 1.0f);
    EXPECT_EQ(without[dynamic_code<false>(std::abs(value), std::abs(value), word, without.data())], 1.0f);
    EXPECT_GT(dynamic_code<false>(std::abs(value), 1e38f, word, without.data()), 0);
  }
  EXPECT_EQ(dynamic_code<false>(0.0f, 1.0f, 0xffff, without.data()), 0);
  EXPECT_EQ(dynamic_code<true>(0.0f, 0.0f, 0xffff, with_sign.data()), 0);
}

TEST(DynamicCode, AScaleKeepsItsSignAndIsFinite) {
  for (float value : {0.0f, 1e-40f, -1e-40f, 1.5f, -1.5f, 3e38f}) EXPECT_EQ(to_scale(magnitude_key(value)), value);
  EXPECT_LT(magnitude_key(-1.0f), magnitude_key(1.5f));
  EXPECT_LT(magnitude_key(1.0f), magnitude_key(-1.5f));
  const float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  EXPECT_EQ(to_scale(magnitude_key(infinity)), largest);
  EXPECT_EQ(to_scale(magnitude_key(-infinity)), -largest);
}

}  // namespace
}  // namespace hone
