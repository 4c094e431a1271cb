#include "core/profiler.h"

#include <gtest/gtest.h>

#include <thread>

namespace hone {
namespace {

using std::chrono::milliseconds;

class ProfilerTest : public ::testing::Test {
 protected:
  ProfilerTest() : pool_(1), stream_(Device{}, pool_), scratch_(Device{}, "scratch"), context_(stream_, scratch_) {
    scratch_.reserve(0);
  }
  /// Work of at least `time`.
  void sleep(milliseconds time) {
    stream_.enqueue([time](ThreadPool&) { std::this_thread::sleep_for(time); });
  }

  ThreadPool pool_;
  Stream stream_;
  Arena scratch_;
  Context context_;
};

TEST_F(ProfilerTest, AClockTellsWhenTheWorkRanNotWhenItWasQueued) {
  StreamClock clock(stream_);
  EXPECT_EQ(clock.mark(), 0u);
  sleep(milliseconds(20));
  EXPECT_EQ(clock.mark(), 1u);
  sleep(milliseconds(10));
  EXPECT_EQ(clock.mark(), 2u);
  const std::vector<double> seconds = clock.seconds();
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_EQ(seconds[0], 0.0);
  EXPECT_GE(seconds[1], 0.020);
  EXPECT_GE(seconds[2] - seconds[1], 0.010);
  clock.clear();
  EXPECT_EQ(clock.size(), 0u);
  EXPECT_EQ(clock.mark(), 0u);
  EXPECT_EQ(clock.seconds(), std::vector<double>{0.0});
}

TEST_F(ProfilerTest, SpansNestAndAreNamed) {
  Profiler profiler(stream_);
  {
    const ProfileScope step(stream_, ProfileKind::kStep, "step", "", 7);
    {
      const ProfileScope op(context_, ProfileKind::kOp, "linear", "forward");
      sleep(milliseconds(15));
    }
    sleep(milliseconds(5));
  }
  const std::vector<ProfileSpan> spans = profiler.take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "step");
  EXPECT_EQ(spans[0].index, 7);
  EXPECT_EQ(spans[1].name, "linear");
  EXPECT_EQ(spans[1].pass, "forward");
  EXPECT_LE(spans[0].begin, spans[1].begin);
  EXPECT_GE(spans[1].end - spans[1].begin, 0.015);
  EXPECT_GE(spans[0].end - spans[1].end, 0.005);
  EXPECT_TRUE(profiler.take().empty());
}

TEST_F(ProfilerTest, DryPassesAndStreamsWithoutProfilerRecordNothing) {
  { const ProfileScope nobody(stream_, ProfileKind::kOp, "linear"); }
  EXPECT_EQ(stream_.profiler(), nullptr);
  {
    Profiler profiler(stream_);
    EXPECT_EQ(stream_.profiler(), &profiler);
    Arena dry(Device{}, "dry");
    { const ProfileScope scope(Context(stream_, dry), ProfileKind::kOp, "linear"); }
    EXPECT_TRUE(profiler.take().empty());
  }
  EXPECT_EQ(stream_.profiler(), nullptr);
}

}  // namespace
}  // namespace hone
