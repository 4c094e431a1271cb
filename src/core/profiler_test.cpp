#include "core/profiler.h"
#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "core/thread_pool.h"

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
  const std::vector<ProfileSpan> spans = profiler.take().spans;
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "step");
  EXPECT_EQ(spans[0].index, 7);
  EXPECT_EQ(spans[1].name, "linear");
  EXPECT_EQ(spans[1].pass, "forward");
  EXPECT_LE(spans[0].begin, spans[1].begin);
  EXPECT_GE(spans[1].end - spans[1].begin, 0.015);
  EXPECT_GE(spans[0].end - spans[1].end, 0.005);
  EXPECT_TRUE(profiler.take().spans.empty());
}

TEST(Profiler, TellsWhatEachThreadDidOfWhichOp) {
  ThreadPool pool(3);
  Stream stream(Device{}, pool);
  Profiler profiler(stream);
  const auto loop = [&](int64_t tasks) {
    stream.enqueue([tasks](ThreadPool& threads) {
      threads.parallel_for(tasks, [](int64_t, int) { std::this_thread::sleep_for(milliseconds(2)); });
    });
  };
  for (const char* name : {"first", "second"}) {
    const ProfileScope op(stream, ProfileKind::kOp, name);
    for (int64_t tasks : {12, 1}) loop(tasks);
  }
  loop(6);
  const Profile profile = profiler.take();
  EXPECT_EQ(profile.threads, 3);
  EXPECT_EQ(profile.unrecorded_loops, 0);
  std::map<int64_t, int64_t> tasks_of_op;
  double before = -1;
  int thread = 0;
  for (const ThreadSpan& span : profile.loops) {
    tasks_of_op[span.op] += span.tasks;
    EXPECT_GE(span.end - span.begin, 0.002 * static_cast<double>(span.tasks));
    if (span.op >= 0) {
      EXPECT_GE(span.begin, profile.spans[static_cast<size_t>(span.op)].begin);
      EXPECT_LE(span.end, profile.spans[static_cast<size_t>(span.op)].end);
    }
    EXPECT_GE(span.thread, thread);
    if (span.thread != thread) before = -1;
    EXPECT_GE(span.begin, before);
    thread = span.thread;
    before = span.end;
  }
  EXPECT_EQ(tasks_of_op, (std::map<int64_t, int64_t>{{-1, 6}, {0, 13}, {1, 13}}));
  EXPECT_TRUE(profiler.take().loops.empty());
}

TEST(Profiler, ThereIsABoundToWhatItKeeps) {
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  Profiler profiler(stream);
  const auto loops = static_cast<int64_t>(kMostThreadSpans) + 5;
  {
    const ProfileScope op(stream, ProfileKind::kOp, "many");
    stream.enqueue([loops](ThreadPool& threads) {
      for (int64_t i = 0; i < loops; ++i) threads.parallel_for(2, [](int64_t, int) {});
    });
  }
  const Profile profile = profiler.take();
  EXPECT_EQ(profile.loops.size(), kMostThreadSpans);
  EXPECT_EQ(profile.unrecorded_loops, 5);
}

TEST_F(ProfilerTest, DryPassesAndStreamsWithoutProfilerRecordNothing) {
  { const ProfileScope nobody(stream_, ProfileKind::kOp, "linear"); }
  EXPECT_EQ(stream_.profiler(), nullptr);
  {
    Profiler profiler(stream_);
    EXPECT_EQ(stream_.profiler(), &profiler);
    Arena dry(Device{}, "dry");
    { const ProfileScope scope(Context(stream_, dry), ProfileKind::kOp, "linear"); }
    EXPECT_TRUE(profiler.take().spans.empty());
  }
  EXPECT_EQ(stream_.profiler(), nullptr);
}

}  // namespace
}  // namespace hone
