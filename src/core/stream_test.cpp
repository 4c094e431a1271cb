#include "core/stream.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "core/buffer.h"
#include "core/thread_pool.h"

namespace hone {
namespace {

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
  // Were the work run by enqueue, this line would never be reached.
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
  stream.synchronize();  // the error was taken: the stream works again
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

}  // namespace
}  // namespace hone
