#include "report/page/series.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/text/json.h"

namespace hone {
namespace {

Series line(int64_t points) {
  Series series;
  for (int64_t step = 1; step <= points; ++step) EXPECT_TRUE(series.add(step, static_cast<double>(step)));
  return series;
}

TEST(Series, AShortOneStaysAsItIs) {
  const std::vector<SeriesBucket> buckets = line(5).reduced(5);
  ASSERT_EQ(buckets.size(), 5u);
  for (int64_t i = 0; i < 5; ++i) {
    const SeriesBucket& bucket = buckets[static_cast<size_t>(i)];
    EXPECT_EQ(bucket.first, i + 1);
    EXPECT_EQ(bucket.last, i + 1);
    EXPECT_EQ(bucket.mean, static_cast<double>(i + 1));
  }
  EXPECT_TRUE(Series().reduced(3).empty());
}

TEST(Series, ALongOneKeepsItsEndsAndTheRangeOfWhatItJoins) {
  for (const int64_t points : {700, 16'386, 16'387, 100'000, 300'001}) {
    SCOPED_TRACE(points);
    const std::vector<SeriesBucket> buckets = line(points).reduced(600);
    ASSERT_EQ(buckets.size(), 600u);
    EXPECT_EQ(buckets.front().mean, 1);
    EXPECT_EQ(buckets.back().mean, static_cast<double>(points));
    int64_t expected = 1, all = 0, most = 0;
    for (const SeriesBucket& bucket : buckets) {
      EXPECT_EQ(bucket.first, expected) << "nothing is left out, and nothing is there twice";
      expected = bucket.last + 1;
      EXPECT_EQ(bucket.least, static_cast<double>(bucket.first));
      EXPECT_EQ(bucket.most, static_cast<double>(bucket.last));
      EXPECT_NEAR(bucket.mean, static_cast<double>(bucket.first + bucket.last) / 2, 1e-6);
      all += bucket.points;
      most = std::max(most, bucket.points);
    }
    EXPECT_EQ(all, points);
    EXPECT_LE(most, 2 * points / 600 + 32) << "equal parts";
  }
}

TEST(Series, APeakOfOneStepIsSeen) {
  Series series;
  for (int64_t step = 1; step <= 100'000; ++step) series.add(step, step == 54'321 ? 1e6 : 1.0);
  double most = 0;
  for (const SeriesBucket& bucket : series.reduced(100)) most = std::max(most, bucket.most);
  EXPECT_EQ(most, 1e6);
}

TEST(Series, WhatIsNotFiniteIsAGapAndWhatComesBeforeIsLeftOut) {
  Series series;
  EXPECT_TRUE(series.add(1, 2.0));
  EXPECT_TRUE(series.add(2, NAN));
  EXPECT_TRUE(series.add(4, INFINITY));
  EXPECT_FALSE(series.add(4, 1.0));
  EXPECT_FALSE(series.add(3, 1.0));
  EXPECT_TRUE(series.add(5, 4.0));
  EXPECT_EQ(series_json(series.reduced(10)), (Json{{"x", {1, 2, 4, 5}}, {"y", {2.0, nullptr, nullptr, 4.0}}}));
  const Json joined = series_json(series.reduced(3));
  EXPECT_EQ(joined["x"], (Json{1, 4, 5}));
  EXPECT_EQ(joined["y"], (Json{2.0, nullptr, 4.0})) << "a bucket without a number is a gap, too";
  EXPECT_TRUE(joined.contains("lo"));
}

TEST(Series, NumbersHaveFiveDigits) {
  EXPECT_EQ(short_json(6.856418178864415).dump(), "6.8564");
  EXPECT_EQ(short_json(0.00025000000001).dump(), "0.00025");
  EXPECT_EQ(short_json(-1234567.8).dump(), "-1234568.0");
  EXPECT_EQ(short_json(0), 0);
  EXPECT_TRUE(short_json(NAN).is_null());
  EXPECT_NEAR(short_json(3.14159e-320).get<double>(), 3.14159e-320, 1e-322);
}

}  // namespace
}  // namespace hone
