#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>

#include <algorithm>
#include <vector>

#include "core/cuda_device.h"
#include "core/error.h"
#include "session/device_facts.h"

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

TEST(RankThreads, ShareTheCoresThatTheProcessMayRunOn) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const int all = CPU_COUNT(&before);
  EXPECT_EQ(rank_threads(0, 1), all);
  EXPECT_EQ(rank_threads(0, all), 1);
  EXPECT_EQ(rank_threads(0, 10 * all), 1);
  EXPECT_EQ(rank_threads(5, 8), 5) << "what is stated counts";
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(rank_threads(0, 1), 1) << "as a container or a launcher binds it";
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(HostMemory, WhatIsWrittenBecomesResidentAndThePeakStays) {
  constexpr size_t kBytes = size_t{64} << 20;
  EXPECT_GT(available_host_memory(), 0u);
  const uint64_t before = resident_bytes();
  ASSERT_GT(before, 0u);
  {
    const std::vector<char> memory(kBytes, 1);
    EXPECT_EQ(memory[kBytes / 2], 1);
    EXPECT_GE(resident_bytes(), before + kBytes / 2);
  }
  EXPECT_GE(peak_resident_bytes(), before + kBytes / 2);
  EXPECT_GE(peak_resident_bytes(), resident_bytes());
}

}  // namespace
}  // namespace hone

namespace hone::cuda {
namespace {

TEST(CudaCode, MachineCodeRunsOnItsMajorVersionFromItsMinorOn) {
  EXPECT_TRUE(has_code_for("80", 8, 0));
  EXPECT_TRUE(has_code_for("80", 8, 9));
  EXPECT_FALSE(has_code_for("86", 8, 0));
  EXPECT_FALSE(has_code_for("80", 9, 0));
  EXPECT_FALSE(has_code_for("120", 10, 0));
  EXPECT_TRUE(has_code_for("120", 12, 1));
}

TEST(CudaCode, ArchitectureSpecificCodeRunsOnOneVersion) {
  EXPECT_TRUE(has_code_for("90a", 9, 0));
  EXPECT_FALSE(has_code_for("90a", 8, 0));
  EXPECT_FALSE(has_code_for("90a", 10, 0));
  EXPECT_FALSE(has_code_for("100a", 10, 3));
}

TEST(CudaCode, PtxRunsOnEverythingLater) {
  EXPECT_TRUE(has_code_for("90a, compute_80", 12, 0));
  EXPECT_TRUE(has_code_for("compute_80", 8, 6));
  EXPECT_FALSE(has_code_for("compute_80", 7, 5));
}

TEST(CudaCode, ListsAreReadAndOthersAreNotCounted) {
  EXPECT_TRUE(has_code_for("80;90a", 9, 0));
  EXPECT_TRUE(has_code_for("80 90a", 8, 6));
  for (const char* list : {"", ",", "native", "90x", "a", "sm_90"}) EXPECT_FALSE(has_code_for(list, 9, 0)) << list;
}

}  // namespace
}  // namespace hone::cuda
