#include "train/profile_report.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

/// Two steps of 10 ms; 4 ms of each are experts, 3 ms attention, 1 ms the optimizer. An op stands before the first.
Profile two_steps() {
  Profile profile;
  std::vector<ProfileSpan>& spans = profile.spans;
  spans = {{ProfileKind::kOp, "linear", "forward", 0, 0.0, 0.5}};
  for (int64_t i = 0; i < 2; ++i) {
    const double begin = 1.0 + 0.01 * static_cast<double>(i);
    spans.push_back({ProfileKind::kStep, "step", "", i, begin, begin + 0.010});
    spans.push_back({ProfileKind::kBlock, "block", "forward", 0, begin, begin + 0.008});
    spans.push_back({ProfileKind::kOp, "attention", "forward", 0, begin + 0.001, begin + 0.004, 5e6});
    spans.push_back({ProfileKind::kOp, "moe_gate_up", "backward", 0, begin + 0.004, begin + 0.007});
    spans.push_back({ProfileKind::kOp, "router", "backward", 0, begin + 0.007, begin + 0.008});
    spans.push_back({ProfileKind::kOp, "adamw", "", 0, begin + 0.008, begin + 0.009});
  }
  return profile;
}

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
  const Json& router = json["ops"][3]["name"] == "router backward" ? json["ops"][3] : json["ops"][2];
  EXPECT_NEAR(router["share_of_group"].get<double>(), 0.25, 1e-9);
  EXPECT_FALSE(router.contains("mb")) << "nobody knows";
}

/// Thread 0 works through the whole of the first step's attention, thread 1 through a third of it. Within its task,
/// thread 0 had a loop of its own.
Profile two_steps_on_two_threads() {
  Profile profile = two_steps();
  profile.threads = 2;
  const double begin = profile.spans[3].begin;
  profile.loops = {{0, 1, 3, begin, begin + 0.003},
                   {0, 4, 3, begin + 0.001, begin + 0.002},
                   {1, 2, 3, begin, begin + 0.001},
                   {1, 9, -1, begin + 0.1, begin + 0.2}};
  return profile;
}

TEST(ProfileReport, ThreadsAreBusyWhileTheyWorkOnTheirLoops) {
  const ProfileSummary summary = summarise_profile(two_steps_on_two_threads(), 200);
  const Json json = profile_json(summary);
  for (const Json& op : json["ops"]) {
    // 4 of 6 ms in one step, nothing in the other
    EXPECT_NEAR(op["threads_busy"].get<double>(), op["name"] == "attention forward" ? 4.0 / 12 : 0.0, 1e-9) << op;
  }
  EXPECT_NE(profile_table(summary, false).find("33.3 %"), std::string::npos);
}

/// A step of 10 ms on a GPU: attention, which waits from 2 to 3 ms, then the optimizer. Beside them a reduce-scatter
/// from 0.5 to 3 ms, and two gathers from 7 ms on, the last of which ends after the step.
Profile step_with_collectives() {
  Profile profile;
  profile.spans = {{ProfileKind::kStep, "step", "", 0, 0.0, 0.010},
                   {ProfileKind::kCollective, "reduce-scatter", "layer 1", 0, 0.0005, 0.003, 8e6},
                   {ProfileKind::kOp, "attention", "forward", 0, 0.001, 0.005},
                   {ProfileKind::kWait, "wait for", "layer 1", 0, 0.002, 0.003},
                   {ProfileKind::kOp, "adamw", "", 0, 0.005, 0.009},
                   {ProfileKind::kCollective, "all-gather", "embedding", 0, 0.007, 0.0085, 2e6},
                   {ProfileKind::kCollective, "all-gather", "layer 1", 0, 0.0085, 0.0115, 2e6}};
  return profile;
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
  EXPECT_NEAR(seconds_of(summary.ops, "all-gather"), 0.001, 1e-12) << "what comes after the step is the next one's";
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
                   {ProfileKind::kOp, "grad_norm", "", 0, 0.001, 0.005},
                   {ProfileKind::kCollective, "all-reduce", "measurements", 0, 0.002, 0.004, 8}};
  const ProfileSummary summary = summarise_profile(profile, 0);
  EXPECT_NEAR(summary.exposed_seconds, 0.002, 1e-12);
  EXPECT_NEAR(summary.hidden_share(), 0, 1e-9);
  EXPECT_NEAR(summary.groups.back().seconds, 0.006, 1e-12);
}

TEST(ProfileReport, TheTraceHasALaneForStepsBlocksAndOpsAndForEachThread) {
  const auto lanes_of = [](const Json& trace) {
    std::vector<std::string> names;
    for (const Json& event : trace["traceEvents"]) {
      if (event["name"] == "thread_name") names.push_back(event["args"]["name"]);
    }
    return names;
  };
  const auto spans_of = [](const Json& trace, int lane) {
    Json spans = Json::array();
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "X" && event["tid"] == lane) spans.push_back(event);
    }
    return spans;
  };
  const Json trace = chrome_trace(two_steps());
  EXPECT_EQ(lanes_of(trace), (std::vector<std::string>{"steps", "blocks", "ops"}));
  const Json steps = spans_of(trace, 0), ops = spans_of(trace, 2);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0]["name"], "step 0");
  EXPECT_NEAR(steps[0]["dur"].get<double>(), 10000, 1e-6);
  ASSERT_EQ(ops.size(), 9u);
  EXPECT_EQ(ops[1]["cat"], "attention");
  EXPECT_EQ(ops[1]["args"]["pass"], "forward");

  const Json ranks = chrome_trace(step_with_collectives());
  EXPECT_EQ(lanes_of(ranks), (std::vector<std::string>{"steps", "blocks", "ops", "collectives"}));
  const Json collectives = spans_of(ranks, 3);
  ASSERT_EQ(collectives.size(), 3u);
  EXPECT_EQ(collectives[0]["name"], "reduce-scatter layer 1, 8.0 MB");
  EXPECT_EQ(collectives[0]["cat"], "collectives");
  EXPECT_EQ(spans_of(ranks, 2)[1]["name"], "wait for layer 1");

  Profile profile = two_steps_on_two_threads();
  profile.unrecorded_loops = 7;
  const Json threads = chrome_trace(profile);
  EXPECT_EQ(lanes_of(threads), (std::vector<std::string>{"steps", "blocks", "ops", "thread 0", "thread 1"}));
  const Json second = spans_of(threads, 4);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0]["name"], "attention forward");
  EXPECT_EQ(second[0]["args"]["tasks"], 2);
  EXPECT_NEAR(second[0]["dur"].get<double>(), 1000, 1e-6);
  EXPECT_EQ(second[1]["name"], "loop");
  EXPECT_EQ(threads["otherData"]["unrecorded_loops"], 7);
}

}  // namespace
}  // namespace hone
