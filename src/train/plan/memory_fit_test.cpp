#include "train/plan/memory_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/plan/recompute.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

/// A run that needs less memory the more it recomputes: 1000 bytes, 100 less a level, and 100 with everything.
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
  return choose_level(allowed_levels(choice_called<Checkpointing>(setting)), limit, plan_of);
}

TEST(MemoryFit, AutoTakesTheFirstLevelThatFits) {
  EXPECT_EQ(choose("auto", {1000, 1000}).level, "none");
  EXPECT_EQ(choose("auto", {999, 999}).level, "norms");
  EXPECT_EQ(choose("auto", {899, 899}).level, "activations");
  EXPECT_EQ(choose("auto", {700, 700}).level, "experts");
  EXPECT_EQ(choose("auto", {699, 699}).level, "all_but_attention");
  EXPECT_EQ(choose("auto", {599, 599}).level, "everything");
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
  for (const char* setting : {"true", "false", "norms", "activations", "experts", "all_but_attention"}) {
    const std::vector<std::string> levels = allowed_levels(choice_called<Checkpointing>(setting));
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

TEST(MemoryFit, OffloadedActivationsAreKeptOnlyAsFarAsTheLinkIsFastEnough) {
  // Each level copies 100 ms less by the link of an H200 than the one before, and computes a fifth of forward more.
  const auto planned = [](const RecomputePolicy& policy) {
    constexpr double kFlops = 100e12, kLink = 64e9;
    const auto level = static_cast<double>(policy.level);
    MemoryPlan plan = plan_of(policy);
    plan.host_activations = static_cast<int64_t>((0.5 - 0.1 * level) * kLink) + 1;
    plan.work.forward.flops = kFlops;
    plan.work.backward.flops = 2 * kFlops;
    plan.work.recompute.flops = level / 5 * kFlops;
    return plan;
  };
  MemoryLimit limit{.comfortable = 1000, .most = 1000};
  EXPECT_EQ(choose_level(allowed_levels({}), limit, planned).level, "none") << "times are not predicted";
  limit.gpu = parse_gpu_model("h200", "");
  const FittingLevel chosen = choose_level(allowed_levels({}), limit, planned);
  EXPECT_EQ(chosen.level, "all_but_attention") << "forward takes 168 ms, copies of the level before 250 ms";
  EXPECT_TRUE(chosen.by_time);
  EXPECT_TRUE(chosen.fits);
  limit.comfortable = limit.most = 599;
  EXPECT_EQ(choose_level(allowed_levels({}), limit, planned).level, "everything");
  limit.gpu->link_gbs = 450;
  limit.comfortable = limit.most = 1000;
  const FittingLevel fast_link = choose_level(allowed_levels({}), limit, planned);
  EXPECT_EQ(fast_link.level, "none");
  EXPECT_FALSE(fast_link.by_time);
}

TEST(MemoryFit, ExpertsOnTheHostAreRecomputedIfItsMemoryIsShort) {
  const auto choose = [](int64_t device, int64_t host) {
    return choose_level(allowed_levels({}), {.comfortable = device, .most = device, .host = host},
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

TEST(MemoryFit, ExpertsOnTheHostAreRecomputedThereOnlyAtTheLevelsOfExperts) {
  int plans = 0;
  const auto counted = [&](const RecomputePolicy& policy) {
    ++plans;
    EXPECT_TRUE(!policy.on_host || policy.level >= RecomputeLevel::kExperts);
    return plan_with_experts_on_host(policy);
  };
  const MemoryLimit limit{.comfortable = 1000, .most = 1000, .host = 200};
  EXPECT_TRUE(choose_level(allowed_levels({}), limit, counted).fits);
  EXPECT_EQ(plans, 7);
  EXPECT_TRUE(fits_at("everything", limit, counted));
  EXPECT_TRUE(fits_at("experts", limit, counted));
  EXPECT_FALSE(fits_at("norms", limit, counted));
  EXPECT_FALSE(fits_at("none", limit, counted));
  EXPECT_FALSE(choose_level({"norms"}, limit, counted).on_host);
}

TEST(MemoryFit, ExpertsOnTheHostLeaveAMarginThereUnlessTheyNeedIt) {
  const auto choose = [](const std::string& setting, MemoryLimit limit) {
    limit.comfortable = limit.most = 1000;
    return choose_level(allowed_levels(choice_called<Checkpointing>(setting)), limit, plan_with_experts_on_host);
  };
  EXPECT_EQ(choose("auto", {.host = 550, .host_margin = 50}).level, "none");
  const FittingLevel close = choose("auto", {.host = 550, .host_margin = 51});
  EXPECT_EQ(close.level, "experts");
  EXPECT_TRUE(close.on_host);
  EXPECT_TRUE(close.fits);
  EXPECT_TRUE(choose("true", {.host = 550, .host_margin = 51}).on_host);
  EXPECT_TRUE(choose("true", {.host = 100, .host_margin = 10}).fits) << "nothing needs less";
  EXPECT_TRUE(choose("norms", {.host = 500, .host_margin = 50}).fits) << "this level recomputes no experts";
  MemoryPlan offloaded;
  offloaded.host_activations = 500;
  EXPECT_TRUE(
      (MemoryLimit{.comfortable = 1, .most = 1, .host = 500, .host_margin = 50}.fits_host_comfortably(offloaded)));
}

TEST(MemoryFit, WhatIsRecomputedSaysOnWhichSide) {
  EXPECT_EQ(level_note("none", false), "kept");
  EXPECT_EQ(level_note("experts", false), "kept, experts recomputed");
  EXPECT_EQ(level_note("all_but_attention", false), "recomputed in backward, but not attention");
  EXPECT_EQ(level_note("everything", true), "recomputed in backward, experts on the CPU too");
}

TEST(MemoryFit, AdviceOnHostMemoryNamesWhatIsThere) {
  const MemoryLimit limit{.comfortable = 1000, .most = 1000, .host = 400};
  MemoryPlan plan;
  plan.experts_on_host = 100;
  plan.parameters.host = plan.parameters.on_host = 400;
  const auto fix = [&] { return does_not_fit("the run", plan, limit, "less").fix(); };
  EXPECT_EQ(fix(),
            "hold the experts in fewer bits (expert_weight_dtype, with adapters), or more of them on the device "
            "(experts_device: gpu, or fewer cpu_expert_layers); less");
  plan.host_activations = 10;
  EXPECT_THAT(fix(), AllOf(HasSubstr("offload less (cpu_offload); "), HasSubstr("experts_device: gpu")));
  plan.experts_on_host = plan.parameters.on_host = 0;
  EXPECT_EQ(fix(), "offload less (cpu_offload); less");
}

}  // namespace
}  // namespace hone
