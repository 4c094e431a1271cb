#include "report/humanise.h"

#include <gtest/gtest.h>

#include <limits>

namespace hone {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Humanise, BytesUseDecimalUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1200), "1.2 kB");
  EXPECT_EQ(human_bytes(12.34e9), "12.3 GB");
  EXPECT_EQ(human_bytes(999.4e6), "999 MB");
  EXPECT_EQ(human_bytes(80e9), "80.0 GB");
}

TEST(Humanise, RoundingMovesToTheNextUnit) {
  EXPECT_EQ(human_bytes(999'960), "1.0 MB");
  EXPECT_EQ(human_count(999.96e3), "1.0M");
}

TEST(Humanise, CountsAreShort) {
  EXPECT_EQ(human_count(840), "840");
  EXPECT_EQ(human_count(81.25), "81.2");
  EXPECT_EQ(human_count(3417), "3.4k");
  EXPECT_EQ(human_count(123'400), "123k");
  EXPECT_EQ(human_count(30.5e9), "30.5B");
}

TEST(Humanise, DurationsChooseTwoUnits) {
  EXPECT_EQ(human_duration(0.84), "0.8s");
  EXPECT_EQ(human_duration(9.96), "10s");
  EXPECT_EQ(human_duration(59.7), "1m00s");
  EXPECT_EQ(human_duration(185), "3m05s");
  EXPECT_EQ(human_duration(3720), "1h02m");
  EXPECT_EQ(human_duration(2 * 86400 + 3 * 3600), "2d03h");
  EXPECT_EQ(human_duration(kInf), "-");
  EXPECT_EQ(human_duration(-1), "0.0s");
}

TEST(Humanise, CommasSeparateThousands) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(4194304), "4,194,304");
  EXPECT_EQ(with_commas(-100000), "-100,000");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Humanise, ShortNumbersKeepThreeDigits) {
  EXPECT_EQ(short_number(9.85e-5), "9.85e-5");
  EXPECT_EQ(short_number(0.8731), "0.873");
  EXPECT_EQ(short_number(0.01234), "0.0123");
  EXPECT_EQ(short_number(1.2345), "1.23");
  EXPECT_EQ(short_number(9.999), "10.0");
  EXPECT_EQ(short_number(123.4), "123");
  EXPECT_EQ(short_number(1.5e6), "1.50e6");
  EXPECT_EQ(short_number(1.349e-15), "1.3e-15");
  EXPECT_EQ(short_number(0), "0");
}

TEST(Humanise, NonFiniteNumbersAreNamed) {
  EXPECT_EQ(short_number(kNan), "NaN");
  EXPECT_EQ(short_number(-kInf), "-Inf");
  EXPECT_EQ(human_count(kInf), "Inf");
}

}  // namespace
}  // namespace hone
