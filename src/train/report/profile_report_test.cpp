#include "train/report/profile_report.h"

#include <gtest/gtest.h>

#include "core/text/json.h"
#include "train/report/profile_testing.h"

namespace hone {
namespace {

TEST(ProfileReport, GroupsAddUpToTheStep) {
  Profile profile = two_steps();
  profile.spans.erase(profile.spans.begin());
  const ProfileSummary summary = summarise_profile(profile, 0);
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
  EXPECT_EQ(summarise_profile(two_steps(), 0).ops.size(), 4u);
  EXPECT_EQ(summarise_profile({}, 0).steps, 0);
}

TEST(ProfileReport, CountersAreOfAStepAndItsTokens) {
  const Json json = profile_json(summarise_profile(two_steps(), 200));
  EXPECT_EQ(json["tokens"], 100);
  const Json& attention = json["ops"][0]["name"] == "attention forward" ? json["ops"][0] : json["ops"][1];
  EXPECT_EQ(attention["group"], "attention");
  EXPECT_EQ(attention["calls"], 1);
  EXPECT_NEAR(attention["ms"].get<double>(), 3, 1e-9);
  EXPECT_NEAR(attention["us_per_token"].get<double>(), 30, 1e-9);
  EXPECT_NEAR(attention["mb"].get<double>(), 5, 1e-9);
  EXPECT_NEAR(attention["share"].get<double>(), 0.3, 1e-9);
  EXPECT_NEAR(attention["share_of_group"].get<double>(), 1, 1e-9);
  EXPECT_FALSE(attention.contains("threads_busy")) << "a GPU has no threads";
  Profile uneven = two_steps();
  uneven.spans[3].end -= 0.001;  // attention of the first step
  const Json of_uneven = profile_json(summarise_profile(uneven, 200));
  for (const Json& op : of_uneven["ops"]) {
    if (op["name"] != "attention forward") continue;
    EXPECT_NEAR(op["call_ms"]["least"].get<double>(), 2, 1e-9);
    EXPECT_NEAR(op["call_ms"]["mean"].get<double>(), 2.5, 1e-9);
    EXPECT_NEAR(op["call_ms"]["most"].get<double>(), 3, 1e-9);
  }
  const Json& router = json["ops"][3]["name"] == "router backward" ? json["ops"][3] : json["ops"][2];
  EXPECT_NEAR(router["share_of_group"].get<double>(), 0.25, 1e-9);
  EXPECT_FALSE(router.contains("mb")) << "no call reports bytes";
}

TEST(ProfileReport, ThreadsAreBusyWhileTheyWorkOnTheirLoops) {
  const ProfileSummary summary = summarise_profile(two_steps_on_two_threads(), 200);
  const Json json = profile_json(summary);
  for (const Json& op : json["ops"]) {
    // 4 of 6 ms in one step, 0 in the other
    EXPECT_NEAR(op["threads_busy"].get<double>(), op["name"] == "attention forward" ? 4.0 / 12 : 0.0, 1e-9) << op;
  }
  EXPECT_NE(profile_table(summary, false).find("33.3 %"), std::string::npos);
}

TEST(ProfileReport, CollectivesCountWhereNoOpRunsBesideThem) {
  const ProfileSummary summary = summarise_profile(step_with_collectives(), 0);
  const auto seconds_of = [](const std::vector<ProfileStage>& stages, const std::string& name) {
    for (const ProfileStage& stage : stages) {
      if (stage.name == name) return stage.seconds;
    }
    return -1.0;
  };
  EXPECT_NEAR(seconds_of(summary.ops, "attention forward"), 0.003, 1e-12) << "without its wait";
  EXPECT_NEAR(seconds_of(summary.ops, "reduce-scatter"), 0.0005 + 0.001, 1e-12);
  EXPECT_NEAR(seconds_of(summary.ops, "all-gather"), 0.001, 1e-12) << "the part after the step belongs to the next one";
  EXPECT_NEAR(seconds_of(summary.groups, "collectives"), 0.0025, 1e-12);
  EXPECT_NEAR(seconds_of(summary.groups, "idle"), 0.0005, 1e-12);
  EXPECT_NEAR(summary.collective_seconds, 0.007, 1e-12);
  EXPECT_NEAR(summary.hidden_share(), 4.5 / 7, 1e-9);
  EXPECT_NEAR(profile_json(summary)["collectives"]["exposed_ms"].get<double>(), 2.5, 1e-9);
  EXPECT_NE(profile_table(summary, false).find("collectives: 7.00 ms a step, 64.3 %"), std::string::npos);
}

TEST(ProfileReport, CollectivesOfACpuAreInTheStreamAndHideNothing) {
  Profile profile;
  profile.threads = 1;
  profile.spans = {{ProfileKind::kStep, "step", "", 0, 0.0, 0.010},
                   {ProfileKind::kOp, "grad_norm", "", 0, 0.001, 0.005, 0, OpGroup::kOptimizer},
                   {ProfileKind::kCollective, "all-reduce", "measurements", 0, 0.002, 0.004, 8, OpGroup::kCollectives}};
  const ProfileSummary summary = summarise_profile(profile, 0);
  EXPECT_NEAR(summary.exposed_seconds, 0.002, 1e-12);
  EXPECT_NEAR(summary.hidden_share(), 0, 1e-9);
  EXPECT_NEAR(summary.groups.back().seconds, 0.006, 1e-12);
}

TEST(ProfileReport, TotalsOfStepsProfiledOneByOneAreThoseOfAll) {
  const Profile all = two_steps_on_two_threads();
  ProfileTotals totals;
  Profile first = all, second = all;
  first.spans.resize(7);
  second.spans.erase(second.spans.begin(), second.spans.begin() + 7);
  first.loops.resize(3);
  second.loops.erase(second.loops.begin(), second.loops.begin() + 3);
  totals.add(first, 150);
  totals.add(second, 50);
  EXPECT_EQ(profile_json(totals.summary()).dump(), profile_json(summarise_profile(all, 200)).dump());
}

}  // namespace
}  // namespace hone
