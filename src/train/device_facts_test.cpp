#include "train/device_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <thread>

#include "core/cuda_device.h"
#include "core/error.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& name) {
  try {
    choose_device(name, "--device");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceChoice, AutoTakesAGpuWhereThereIsOne) {
  EXPECT_EQ(choose_device("cpu"), Device{});
  const Device expected = cuda::device_count() > 0 ? Device{DeviceKind::kCuda, 0} : Device{};
  EXPECT_EQ(choose_device("auto"), expected);
}

TEST(DeviceChoice, AGpuThatIsNotThereIsRefusedWithTheReason) {
  const std::string beyond = "cuda:" + std::to_string(std::max(cuda::device_count(), 1));
  if (cuda::device_count() == 0) {
    EXPECT_THAT(refusal("cuda"), HasSubstr("there is no GPU to run on: " + cuda::why_no_device()));
    EXPECT_THAT(refusal(beyond), HasSubstr("--device"));
  } else {
    EXPECT_EQ(refusal("cuda"), "");
    EXPECT_THAT(refusal(beyond), HasSubstr("the last one is cuda:"));
  }
}

TEST(DeviceChoice, OtherNamesAreRefused) {
  for (const char* name : {"", "cud", "cuda:", "cuda:x", "cuda:-1", "cuda:1234", "cpu:0", "CUDA "}) {
    EXPECT_THAT(refusal(name), HasSubstr("is not a device")) << name;
  }
  EXPECT_THAT(refusal("cud"), HasSubstr("Did you mean 'cuda'"));
}

TEST(RankThreads, RanksOfAHostShareItsCores) {
  const int all = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(rank_threads(0, 1), 0) << "a pool's default: all cores";
  EXPECT_EQ(rank_threads(5, 1), 5);
  EXPECT_EQ(rank_threads(5, 8), 5) << "what is stated counts";
  EXPECT_EQ(rank_threads(0, all), 1);
  EXPECT_EQ(rank_threads(0, 10 * all), 1);
}

TEST(RankThreads, ARankThatIsBoundToCoresTakesThose) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one core is all there is";
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(rank_threads(0, 2), 1);
  EXPECT_EQ(rank_threads(0, 1), 0);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace
}  // namespace hone
