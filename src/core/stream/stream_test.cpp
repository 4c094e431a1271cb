#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <stdexcept>
#include <thread>

#include "core/cpu/thread_pool.h"
#include "core/memory/buffer.h"
#include "core/stream/profiler.h"
#include "core/stream/stream.h"

namespace hone {
namespace {

TEST(ThreadPool, CallsEveryIndexOnceWhateverTheNumberOfThreads) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      std::atomic<bool> known_threads{true};
      pool.parallel_for(count, [&](int64_t i, int thread) {
        ++calls[static_cast<size_t>(i)];
        if (thread < 0 || thread >= threads) known_threads = false;
      });
      for (const auto& n : calls) EXPECT_EQ(n.load(), 1);
      EXPECT_TRUE(known_threads.load());
    }
  }
}

TEST(ThreadPool, RangesCoverEverythingOnceAndAreNotLongerThanTheGrain) {
  ThreadPool pool(3);
  for (int64_t grain : {0, 1, 7, 100, 1000}) {
    std::vector<std::atomic<int>> calls(101);
    std::atomic<int64_t> longest{0};
    pool.parallel_ranges(101, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++calls[static_cast<size_t>(i)];
      int64_t seen = longest.load();
      while (seen < end - begin && !longest.compare_exchange_weak(seen, end - begin)) {
      }
    });
    for (const auto& n : calls) EXPECT_EQ(n.load(), 1);
    EXPECT_LE(longest.load(), std::max<int64_t>(grain, 1));
  }
}

TEST(ThreadPool, ALoopInsideALoopRunsInline) {
  ThreadPool pool(3);
  std::atomic<int> calls{0};
  pool.parallel_for(8, [&](int64_t, int) { pool.parallel_for(5, [&](int64_t, int) { ++calls; }); });
  EXPECT_EQ(calls.load(), 40);
}

/// Adds up the reports.
class CountingObserver : public LoopObserver {
 public:
  void ran(int thread, int64_t tasks, Time begin, Time end) noexcept override {
    ++calls[static_cast<size_t>(thread)];
    tasks_seen += tasks;
    if (end < begin) backwards = true;
  }
  std::array<std::atomic<int64_t>, 3> calls = {};
  std::atomic<int64_t> tasks_seen{0};
  std::atomic<bool> backwards{false};
};

TEST(ThreadPool, AnObserverHearsOfEachThreadAtMostOnceALoopAndOfEveryTask) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    CountingObserver observer;
    pool.set_observer(&observer);
    for (int loop = 0; loop < 10; ++loop) pool.parallel_for(100, [](int64_t, int) {});
    pool.parallel_for(1, [](int64_t, int) {});
    pool.set_observer(nullptr);
    pool.parallel_for(100, [](int64_t, int) {});
    for (int thread = 0; thread < 3; ++thread) {
      const int64_t loops = thread == 0 ? 11 : thread < threads ? 10 : 0;
      EXPECT_LE(observer.calls[static_cast<size_t>(thread)].load(), loops) << thread;
    }
    EXPECT_EQ(observer.tasks_seen.load(), 10 * 100 + 1);
    EXPECT_FALSE(observer.backwards.load());
  }
}

TEST(ThreadPool, ALoopDoesNotWaitForThreadsThatHaveNotCome) {
  ThreadPool pool(64);  // more than the cores of most machines
  for (int round = 0; round < 2000; ++round) {
    std::array<int, 7> calls{};
    pool.parallel_for(7, [&](int64_t i, int) { ++calls[static_cast<size_t>(i)]; });
    for (const int n : calls) ASSERT_EQ(n, 1);
  }
}

TEST(ThreadPool, ThreadsThatSleptWakeForTheNextLoop) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> started{0};
    // Each task waits for the other: a loop on one thread would not end.
    pool.parallel_for(2, [&](int64_t, int) {
      ++started;
      while (started.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(started.load(), 2);
  }
}

TEST(ThreadPool, AnExceptionIsThrownToTheCallerAndThePoolGoesOn) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.parallel_for(50,
                                   [](int64_t i, int) {
                                     if (i % 10 == 3) throw std::runtime_error("no");
                                   }),
                 std::runtime_error);
    std::atomic<int> calls{0};
    pool.parallel_for(50, [&](int64_t, int) { ++calls; });
    EXPECT_EQ(calls.load(), 50);
  }
}

TEST(Stream, RunsWorkInTheOrderItWasQueued) {
  ThreadPool pool(2);
  Stream stream(Device{}, pool);
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) stream.enqueue([&order, i](ThreadPool&) { order.push_back(i); });
  stream.synchronize();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Stream, TheHostRunsAheadOfTheWork) {
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  std::promise<void> gate;
  bool done = false;
  stream.enqueue([&](ThreadPool&) { gate.get_future().wait(); });
  stream.enqueue([&](ThreadPool&) { done = true; });
  // If enqueue ran the work, this line would not be reached.
  gate.set_value();
  stream.synchronize();
  EXPECT_TRUE(done);
}

TEST(Stream, TheFirstFailureIsThrownAtSynchronizeAndSkipsWhatStandsBehindIt) {
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  int ran = 0;
  stream.enqueue([&](ThreadPool&) { ++ran; });
  stream.enqueue([](ThreadPool&) { throw std::runtime_error("first"); });
  stream.enqueue([](ThreadPool&) { throw std::runtime_error("second"); });
  stream.enqueue([&](ThreadPool&) { ++ran; });
  try {
    stream.synchronize();
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(ran, 1);
  stream.enqueue([&](ThreadPool&) { ++ran; });
  stream.synchronize();  // the error has been reported: the stream works again
  EXPECT_EQ(ran, 2);
}

TEST(Stream, AFailureInsideAParallelLoopArrivesToo) {
  ThreadPool pool(3);
  Stream stream(Device{}, pool);
  stream.enqueue([](ThreadPool& p) {
    p.parallel_for(100, [](int64_t i, int) {
      if (i == 57) throw std::runtime_error("57");
    });
  });
  EXPECT_THROW(stream.synchronize(), std::runtime_error);
}

TEST(Stream, UploadedValuesComeBack) {
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  const Buffer memory(Device{}, 16);
  const Tensor tensor = memory.tensor({4}, DType::kI32);
  stream.upload(tensor, std::vector<int32_t>{1, -2, 3});
  EXPECT_EQ(stream.download<int32_t>(tensor), (std::vector<int32_t>{1, -2, 3, 0}));
  EXPECT_ANY_THROW(stream.upload(tensor, std::vector<int32_t>(5)));
}

TEST(Stream, FinishesItsQueueBeforeItIsDestroyed) {
  ThreadPool pool(1);
  int ran = 0;
  {
    Stream stream(Device{}, pool);
    for (int i = 0; i < 50; ++i) stream.enqueue([&](ThreadPool&) { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

using std::chrono::milliseconds;

class ProfilerTest : public ::testing::Test {
 protected:
  ProfilerTest() : pool_(1), stream_(Device{}, pool_), scratch_(Device{}, "scratch"), context_(stream_, scratch_) {
    scratch_.reserve(0);
  }
  /// Queues work of at least `time`.
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
