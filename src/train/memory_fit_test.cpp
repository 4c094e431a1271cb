#include "train/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/recompute.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

/// A run that needs less memory the more it recomputes: 1000 bytes, 100 less per level, and 100 with everything.
MemoryPlan plan_of(const RecomputePolicy& policy) {
  MemoryPlan plan;
  plan.activations = 1000;
  plan.activations -= 100 * static_cast<int64_t>(policy.level);
  if (policy.level == RecomputeLevel::kEverything) plan.activations = 100;
  return plan;
}

FittingLevel choose(const std::string& setting, MemoryLimit limit) {
  return choose_level(allowed_levels(setting), limit, plan_of);
}

TEST(MemoryFit, AutoTakesTheFirstLevelThatFits) {
  EXPECT_EQ(choose("auto", {1000, 1000}).level, "none");
  EXPECT_EQ(choose("auto", {999, 999}).level, "norms");
  EXPECT_EQ(choose("auto", {899, 899}).level, "activations");
  EXPECT_EQ(choose("auto", {700, 700}).level, "experts");
  EXPECT_EQ(choose("auto", {699, 699}).level, "everything");
  EXPECT_EQ(choose("auto", {100, 100}).level, "everything");
  EXPECT_TRUE(choose("auto", {100, 100}).fits);
  EXPECT_FALSE(choose("auto", {99, 99}).fits);
}

TEST(MemoryFit, TheMarginCountsOnlyWhereThereIsASmallerLevel) {
  EXPECT_EQ(choose("auto", {900, 1000}).level, "norms");
  EXPECT_EQ(choose("auto", {90, 100}).level, "everything");
  EXPECT_TRUE(choose("auto", {90, 100}).fits);
  EXPECT_TRUE(choose("false", {900, 1000}).fits);
}

TEST(MemoryFit, AStatedLevelIsTheOnlyOne) {
  for (const char* setting : {"true", "false", "norms", "activations", "experts"}) {
    const std::vector<std::string> levels = allowed_levels(setting);
    ASSERT_EQ(levels.size(), 1u);
    EXPECT_EQ(level_setting(levels.front()), setting);
    EXPECT_FALSE(choose(setting, {1, 1}).fits);
  }
}

TEST(MemoryFit, WhatDoesNotFitSaysHowMuchIsMissing) {
  MemoryPlan plan;
  plan.activations = 3'000'000'000;
  const UserError error = does_not_fit("the run", plan, {1'000'000'000, 2'000'000'000}, "less");
  EXPECT_THAT(error.what(), HasSubstr("the run needs 3.00 GB of memory, 2.00 GB are free"));
}

}  // namespace
}  // namespace hone
