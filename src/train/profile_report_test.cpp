#include "train/profile_report.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

/// Two steps of 10 ms; 4 ms of each are experts, 3 ms attention, 1 ms the optimizer. An op stands before the first.
std::vector<ProfileSpan> two_steps() {
  std::vector<ProfileSpan> spans = {{ProfileKind::kOp, "linear", "forward", 0, 0.0, 0.5}};
  for (int64_t i = 0; i < 2; ++i) {
    const double begin = 1.0 + 0.01 * static_cast<double>(i);
    spans.push_back({ProfileKind::kStep, "step", "", i, begin, begin + 0.010});
    spans.push_back({ProfileKind::kBlock, "block", "forward", 0, begin, begin + 0.008});
    spans.push_back({ProfileKind::kOp, "attention", "forward", 0, begin + 0.001, begin + 0.004});
    spans.push_back({ProfileKind::kOp, "moe_gate_up", "backward", 0, begin + 0.004, begin + 0.007});
    spans.push_back({ProfileKind::kOp, "router", "backward", 0, begin + 0.007, begin + 0.008});
    spans.push_back({ProfileKind::kOp, "adamw", "", 0, begin + 0.008, begin + 0.009});
  }
  return spans;
}

TEST(ProfileReport, GroupsAddUpToTheStep) {
  std::vector<ProfileSpan> spans = two_steps();
  spans.erase(spans.begin());
  const ProfileSummary summary = summarise_profile(spans);
  EXPECT_EQ(summary.steps, 2);
  EXPECT_NEAR(summary.step_seconds, 0.010, 1e-12);
  ASSERT_EQ(summary.groups.size(), 4u);
  const char* const names[] = {"experts", "attention", "optimizer", "idle"};
  const double seconds[] = {0.004, 0.003, 0.001, 0.002};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(summary.groups[i].name, names[i]);
    EXPECT_NEAR(summary.groups[i].seconds, seconds[i], 1e-12) << names[i];
  }
  ASSERT_EQ(summary.ops.size(), 4u);
  EXPECT_EQ(summary.ops.back().calls, 1);
  EXPECT_NE(profile_table(summary, false).find("moe_gate_up backward"), std::string::npos);
  EXPECT_EQ(profile_json(summary)["groups"][3]["name"], "idle");
}

TEST(ProfileReport, OpsOutsideOfStepsAreNotCounted) {
  EXPECT_EQ(summarise_profile(two_steps()).ops.size(), 4u);
  EXPECT_EQ(summarise_profile({}).steps, 0);
}

TEST(ProfileReport, TheTraceHasALineForStepsBlocksAndOps) {
  const Json events = chrome_trace(two_steps())["traceEvents"];
  ASSERT_EQ(events.size(), 3u + 13u);
  EXPECT_EQ(events[0]["args"]["name"], "steps");
  EXPECT_EQ(events[4]["name"], "step 0");
  EXPECT_EQ(events[4]["tid"], 0);
  EXPECT_NEAR(events[4]["dur"].get<double>(), 10000, 1e-6);
  EXPECT_EQ(events[6]["cat"], "attention");
  EXPECT_EQ(events[6]["args"]["pass"], "forward");
}

}  // namespace
}  // namespace hone
