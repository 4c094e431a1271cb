#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

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

/// Adds up what it is told.
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
  ThreadPool pool(64);  // more than most machines have cores for
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
    // Each task waits for the other: a loop of one thread would not end.
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

}  // namespace
}  // namespace hone
