#include "train/run/data_wait.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/cpu/thread_pool.h"

namespace hone {
namespace {

constexpr double kShort = 0.02, kLong = 0.2;  // seconds

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class DataWaitTest : public testing::Test {
 protected:
  /// A step of so much work, beside which data are prepared for so long.
  double step(double work, double preparation) {
    wait_.begin();
    stream_.enqueue([work](ThreadPool&) { sleep_for(work); });
    wait_.prepare_beside([&] {
      sleep_for(preparation);
      return 0;
    });
    stream_.synchronize();
    return wait_.take();
  }

  ThreadPool pool_{1};
  Stream stream_{Device{}, pool_};
  DataWait wait_{stream_};
};

TEST_F(DataWaitTest, IsTheTimeInWhichTheDeviceHasNothingToDo) {
  const double waited = step(kShort, kLong);
  EXPECT_GT(waited, (kLong - kShort) / 2);
  EXPECT_LT(waited, 2 * kLong);
}

TEST_F(DataWaitTest, IsNothingBesideLongerWork) { EXPECT_EQ(step(kLong, kShort), 0); }

TEST_F(DataWaitTest, CountsWhatIsPreparedBeforeTheStep) {
  wait_.prepare_first([] {
    sleep_for(kLong);
    return 0;
  });
  EXPECT_GE(step(kShort, 0), kLong);
  EXPECT_LT(step(kLong, 0), kLong) << "of the step before";
}

TEST_F(DataWaitTest, TheLastStepPreparesNothing) {
  wait_.begin();
  stream_.enqueue([](ThreadPool&) { sleep_for(kShort); });
  stream_.synchronize();
  EXPECT_EQ(wait_.take(), 0);
}

}  // namespace
}  // namespace hone
