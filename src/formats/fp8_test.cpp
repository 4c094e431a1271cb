#include "formats/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace hone {
namespace {

constexpr float kTooLarge = std::numeric_limits<float>::infinity();

/// The codes of numbers that are not negative, in rising order.
struct Code {
  uint8_t (*code_of)(float);
  float (*value_of)(uint8_t);
  int last;  ///< the largest number
};
const Code kFp8Codes[] = {{&e4m3_code, [](uint8_t code) { return e4m3_value(code); }, 0x7e},
                          {&e5m2_code, &e5m2_value, 0x7b}};

TEST(Fp8, CodesOfNumbersThatTheyHaveAreThese) {
  EXPECT_EQ(e4m3_value(0x7e), 448.0f);
  EXPECT_EQ(e4m3_value(0x01), 0x1p-9f);
  EXPECT_EQ(e5m2_value(0x7b), 57344.0f);
  EXPECT_EQ(e5m2_value(0x01), 0x1p-16f);
  for (const Code& code : kFp8Codes) {
    for (int i = 0; i <= code.last; ++i) {
      const float value = code.value_of(static_cast<uint8_t>(i));
      ASSERT_EQ(code.code_of(value), i);
      ASSERT_EQ(code.code_of(-value), i | 0x80);
    }
  }
}

TEST(Fp8, OtherNumbersGoToTheNearestAndTiesToTheEvenCode) {
  for (const Code& code : kFp8Codes) {
    for (int i = 0; i < code.last; ++i) {
      const float below = code.value_of(static_cast<uint8_t>(i)), above = code.value_of(static_cast<uint8_t>(i + 1));
      const float middle = (below + above) / 2.0f;
      ASSERT_EQ(code.code_of(middle), i % 2 == 0 ? i : i + 1) << middle;
      ASSERT_EQ(code.code_of(std::nextafter(middle, 0.0f)), i) << middle;
      ASSERT_EQ(code.code_of(std::nextafter(middle, kTooLarge)), i + 1) << middle;
    }
  }
}

TEST(Fp8, LargeNumbersStayFiniteAndNanStaysNan) {
  for (const Code& code : kFp8Codes) {
    EXPECT_EQ(code.code_of(1e9f), code.last);
    EXPECT_EQ(code.code_of(-kTooLarge), code.last | 0x80);
    EXPECT_EQ(code.code_of(std::numeric_limits<float>::quiet_NaN()), 0x7f);
  }
}

TEST(Fp8, AScaleUsesTheWholeRangeAndSurvivesAnyGroup) {
  const auto of = [](float largest) { return fp8_scale(std::bit_cast<uint32_t>(largest), Fp8Code::kE4m3); };
  EXPECT_EQ(of(448.0f).scale, 1.0f);
  EXPECT_EQ(e4m3_code(3.0f * of(3.0f).inverse), 0x7e);
  EXPECT_EQ(of(0.0f).scale, 1.0f);
  EXPECT_EQ(e4m3_code(1e-35f * of(1e-35f).inverse), 0);
  EXPECT_TRUE(std::isfinite(of(std::numeric_limits<float>::max()).scale));
  EXPECT_TRUE(std::isnan(of(kTooLarge).scale) && std::isnan(of(kTooLarge).inverse));
}

}  // namespace
}  // namespace hone
