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

/// The same with experts on the host, whose values take 500 bytes unless they are recomputed.
MemoryPlan plan_with_experts_on_host(const RecomputePolicy& policy) {
  MemoryPlan plan = plan_of(policy);
  plan.experts_on_host = policy.on_host && policy.level >= RecomputeLevel::kExperts ? 100 : 500;
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

TEST(MemoryFit, LibrariesTakeWhatTheyHaveNotTakenYet) {
  const RankShare two{.ranks = 2, .stage = ZeroStage::kValues};
  MemoryPlan plan;
  plan.activations = 1000;
  plan.libraries = library_memory({.kind = DeviceKind::kCuda}, two);
  const auto [all, later] = plan.libraries;
  EXPECT_GT(later, library_memory({.kind = DeviceKind::kCuda}, {}).later) << "communicators are connected later";
  EXPECT_LT(later, all);
  MemoryLimit limit{.comfortable = 1000 + later, .most = 1000 + later};
  EXPECT_TRUE(limit.fits(plan));
  EXPECT_EQ(limit.available(plan), 1000 + all);
  limit.most -= 1;
  EXPECT_FALSE(limit.fits(plan));
  const MemoryLimit stated{.comfortable = 1000 + all, .most = 1000 + all, .initialised = false};
  EXPECT_TRUE(stated.fits(plan));
  EXPECT_EQ(stated.available(plan), 1000 + all);
  EXPECT_EQ(library_memory({}, two).all, 0) << "on a CPU";
}

TEST(MemoryFit, WhatDoesNotFitSaysHowMuchIsMissing) {
  MemoryPlan plan;
  plan.activations = 3'000'000'000;
  const UserError error = does_not_fit("the run", plan, {1'000'000'000, 2'000'000'000}, "less");
  EXPECT_THAT(error.what(), HasSubstr("the run needs 3.00 GB of memory, 2.00 GB are free"));
}

TEST(MemoryFit, ExpertsOnTheHostAreRecomputedIfItsMemoryIsShort) {
  const auto choose = [](int64_t device, int64_t host) {
    return choose_level(allowed_levels("auto"), {.comfortable = device, .most = device, .host = host},
                        plan_with_experts_on_host);
  };
  EXPECT_EQ(choose(1000, 500).level, "none");
  EXPECT_FALSE(choose(700, 500).on_host);
  EXPECT_EQ(choose(700, 500).level, "experts");
  EXPECT_EQ(choose(1000, 200).level, "experts");
  EXPECT_TRUE(choose(1000, 200).on_host);
  EXPECT_FALSE(choose(1000, 50).fits);
  EXPECT_FALSE(choose(50, 500).fits);
  EXPECT_FALSE(choose(50, 500).on_host) << "recomputing experts on the host frees nothing of the device";
}

}  // namespace
}  // namespace hone
