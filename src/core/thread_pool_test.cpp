#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <stdexcept>

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
