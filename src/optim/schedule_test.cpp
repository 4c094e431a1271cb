#include "optim/schedule.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

TEST(Schedule, WarmsUpFromTheFirstStepAndThenFollowsACosineToTheFloor) {
  const Schedule schedule{ScheduleType::kCosine, 1.0, 0.1, 4, 12};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
  EXPECT_NEAR(schedule.at(8), 0.55, 1e-12);  // half way: the mean of peak and floor
  EXPECT_NEAR(schedule.at(12), 0.1, 1e-12);
  EXPECT_NEAR(schedule.at(500), 0.1, 1e-12);
}

TEST(Schedule, LinearFallsEvenlyAndConstantStays) {
  const Schedule linear{ScheduleType::kLinear, 2.0, 0.0, 0, 10};
  EXPECT_DOUBLE_EQ(linear.at(0), 2.0);
  EXPECT_DOUBLE_EQ(linear.at(5), 1.0);
  const Schedule constant{ScheduleType::kConstant, 2.0, 0.0, 2, 10};
  EXPECT_DOUBLE_EQ(constant.at(0), 1.0);
  EXPECT_DOUBLE_EQ(constant.at(9), 2.0);
}

}  // namespace
}  // namespace hone
