#include "report/efficiency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hone {
namespace {

constexpr double kMegabyte = 1 << 20;

StepMetrics step(int64_t number, double seconds, int64_t tokens_so_far, double allocated, double reserved) {
  StepMetrics m;
  m.step = number;
  m.step_time = seconds;
  m.num_tokens = tokens_so_far;
  m.allocated = allocated * kMegabyte;
  m.max_alloc = reserved * kMegabyte;
  return m;
}

TEST(Efficiency, TheFirstTwoStepsHaveNoneAndEnterNoAverage) {
  EfficiencyMeter meter(10);
  EXPECT_FALSE(meter.after(step(1, 60, 100, 5, 9)));
  EXPECT_FALSE(meter.after(step(2, 60, 200, 5, 9)));
  const auto third = meter.after(step(3, 2, 300, 3, 8));
  ASSERT_TRUE(third);
  EXPECT_DOUBLE_EQ(third->step_time_sec, 2);
  EXPECT_DOUBLE_EQ(third->avg_step_time_sec, 2);
  EXPECT_DOUBLE_EQ(third->time_to_completion_sec, 14);
  EXPECT_DOUBLE_EQ(third->estimated_total_time_sec, 20);
  EXPECT_DOUBLE_EQ(third->step_tokens_per_second, 50);
  EXPECT_DOUBLE_EQ(third->total_peak_memory_allocated_MB, 3);
  EXPECT_DOUBLE_EQ(third->total_peak_memory_reserved_MB, 8);
}

TEST(Efficiency, AveragesAreTotalsOverTotalsAndPeaksStay) {
  EfficiencyMeter meter(4);
  meter.after(step(1, 60, 1, 1, 1));
  meter.after(step(2, 60, 2, 1, 1));
  meter.after(step(3, 1, 102, 7, 9));
  const auto last = meter.after(step(4, 3, 122, 4, 6));
  ASSERT_TRUE(last);
  EXPECT_DOUBLE_EQ(last->avg_step_time_sec, 2);
  EXPECT_DOUBLE_EQ(last->time_to_completion_sec, 0);
  EXPECT_DOUBLE_EQ(last->step_tokens_per_second, 20.0 / 3);
  EXPECT_DOUBLE_EQ(last->avg_tokens_per_second, 120.0 / 4);
  EXPECT_DOUBLE_EQ(last->step_peak_memory_allocated_MB, 4);
  EXPECT_DOUBLE_EQ(last->total_peak_memory_allocated_MB, 7);
  EXPECT_DOUBLE_EQ(last->step_peak_memory_reserved_MB, 6);
  EXPECT_DOUBLE_EQ(last->total_peak_memory_reserved_MB, 9);
}

TEST(Efficiency, AResumedRunWarmsUpAgainAndCountsItsOwnTokens) {
  EfficiencyMeter meter(100);
  EXPECT_FALSE(meter.after(step(51, 60, 51'000, 1, 1)));
  EXPECT_FALSE(meter.after(step(52, 60, 52'000, 1, 1)));
  const auto third = meter.after(step(53, 2, 53'000, 1, 1));
  ASSERT_TRUE(third);
  EXPECT_DOUBLE_EQ(third->avg_tokens_per_second, 500);
  EXPECT_DOUBLE_EQ(third->time_to_completion_sec, 47 * 2);
}

TEST(Efficiency, HasItsExactNames) {
  StepMetrics m;
  m.efficiency = Efficiency{};
  std::vector<std::string> names;
  for (const Metric& metric : metric_list(m)) names.push_back(metric.name);
  EXPECT_THAT(names,
              testing::IsSupersetOf(
                  {"step_time_sec", "avg_step_time_sec", "time_to_completion_sec", "estimated_total_time_sec",
                   "step_peak_memory_allocated_MB", "step_peak_memory_reserved_MB", "total_peak_memory_allocated_MB",
                   "total_peak_memory_reserved_MB", "step_tokens_per_second", "avg_tokens_per_second"}));
}

}  // namespace
}  // namespace hone
