#include "train/report/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/base/error.h"
#include "core/files/root_testing.h"
#include "core/text/json.h"
#include "train/report/profile_testing.h"

namespace hone {
namespace {

using ::testing::ElementsAre;

Json read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

std::vector<std::string> lanes_of(const Json& trace) {
  std::vector<std::string> names;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") names.push_back(event["args"]["name"]);
  }
  return names;
}

Json spans_of(const Json& trace, int lane) {
  Json spans = Json::array();
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["tid"] == lane) spans.push_back(event);
  }
  return spans;
}

class TraceFileTest : public ::testing::Test {
 protected:
  Json trace_of(const Profile& profile) {
    TraceFile(path_).add(profile);
    return read(path_);
  }

  const testing::TestRoot root_;
  const std::filesystem::path path_ = root_ / "trace.json";
};

TEST_F(TraceFileTest, HasALaneForStepsBlocksAndOps) {
  const Json trace = trace_of(two_steps());
  EXPECT_THAT(lanes_of(trace), ElementsAre("steps", "blocks", "ops"));
  const Json steps = spans_of(trace, 0), ops = spans_of(trace, 2);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0]["name"], "step 0");
  EXPECT_NEAR(steps[0]["dur"].get<double>(), 10000, 1e-6);
  ASSERT_EQ(ops.size(), 9u);
  EXPECT_EQ(ops[1]["cat"], "attention");
  EXPECT_EQ(ops[1]["args"]["pass"], "forward");
}

TEST_F(TraceFileTest, HasALaneForCollectives) {
  const Json trace = trace_of(step_with_collectives());
  EXPECT_THAT(lanes_of(trace), ElementsAre("steps", "blocks", "ops", "collectives"));
  const Json collectives = spans_of(trace, 3);
  ASSERT_EQ(collectives.size(), 3u);
  EXPECT_EQ(collectives[0]["name"], "reduce-scatter layer 1, 8.0 MB");
  EXPECT_EQ(collectives[0]["cat"], "collectives");
  EXPECT_EQ(spans_of(trace, 2)[1]["name"], "wait for layer 1");
}

TEST_F(TraceFileTest, HasALaneForEachKindOfCopy) {
  Profile profile = step_with_collectives();
  ProfileSpan copy = profile.spans.back();
  copy.kind = ProfileKind::kCollective;
  for (const char* name : {"to host", "peer copy", "from host"}) {
    copy.name = name;
    profile.spans.push_back(copy);
  }
  const Json trace = trace_of(profile);
  EXPECT_EQ(spans_of(trace, 3).size(), 3u);
  for (const int lane : {4, 5, 6}) EXPECT_EQ(spans_of(trace, lane).size(), 1u) << lane;
  EXPECT_THAT(spans_of(trace, 4)[0]["name"].get<std::string>(), ::testing::StartsWith("peer copy"));
}

TEST_F(TraceFileTest, HasALaneForEachThread) {
  Profile profile = two_steps_on_two_threads();
  profile.unrecorded_loops = 7;
  const Json trace = trace_of(profile);
  EXPECT_THAT(lanes_of(trace), ElementsAre("steps", "blocks", "ops", "thread 0", "thread 1"));
  const Json second = spans_of(trace, 8);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0]["name"], "attention forward");
  EXPECT_EQ(second[0]["args"]["tasks"], 2);
  EXPECT_NEAR(second[0]["dur"].get<double>(), 1000, 1e-6);
  EXPECT_EQ(second[1]["name"], "loop");
  EXPECT_EQ(trace["traceEvents"].back()["args"]["count"], 7) << "loops that did not fit in the buffer";
}

TEST_F(TraceFileTest, GrowsAndIsValidJsonAtEveryMoment) {
  TraceFile trace(path_);
  EXPECT_TRUE(read(path_)["traceEvents"].empty());
  for (int i = 0; i < 3; ++i) {
    trace.add(two_steps(), 5.0 * i);
    const Json now = read(path_);
    const Json steps = spans_of(now, 0);
    ASSERT_EQ(steps.size(), 2u * static_cast<size_t>(i + 1));
    EXPECT_NEAR(steps.back()["ts"].get<double>(), (5.0 * i + 1.01) * 1e6, 1);
    EXPECT_EQ(lanes_of(now).size(), 3u) << "named once";
  }
}

TEST_F(TraceFileTest, AFolderThatIsNotThereIsNamed) { EXPECT_THROW(TraceFile(root_ / "none/trace.json"), UserError); }

}  // namespace
}  // namespace hone
