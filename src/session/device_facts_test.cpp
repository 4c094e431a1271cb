#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/cuda/cuda_device.h"
#include "core/files/root_testing.h"
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

TEST(DeviceChoice, NothingIsSaidWhereTheUserOrTheMachineLeavesNoChoice) {
  EXPECT_EQ(why_no_gpu_is_used("cpu", {}), "");
  EXPECT_EQ(why_no_gpu_is_used("auto", {DeviceKind::kCuda, 0}), "");
  if (cuda::device_count() > 0) return;
  EXPECT_EQ(why_no_gpu_is_used("auto", {}), "");
}

TEST(DeviceChoice, RanksTakeGpusOfTheirOwn) {
  EXPECT_EQ(choose_rank_device("cpu", 3, 4, 4), Device{});
  const int gpus = cuda::device_count();
  if (gpus == 0) {
    EXPECT_EQ(choose_rank_device("auto", 1, 2, 2), Device{});
    EXPECT_THROW(choose_rank_device("cuda", 1, 2, 2), UserError);
    return;
  }
  for (int rank = 0; rank < gpus; ++rank) {
    EXPECT_EQ(choose_rank_device("auto", rank, gpus, gpus), (Device{DeviceKind::kCuda, rank}));
  }
  if (gpus == 1) return;
  EXPECT_THROW(choose_rank_device("cuda", gpus, gpus + 1, gpus + 1), UserError);
  EXPECT_THROW(choose_rank_device("cuda:0", 0, gpus, gpus), UserError);
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

TEST(HostMemory, WhatIsWrittenBecomesResidentAndThePeakStaysUntilItIsForgotten) {
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
  forget_peak_memory(Device{});
  EXPECT_LT(used_memory(Device{}), before + kBytes / 2);
}

/// A machine of which /proc and /sys are in a folder.
class HostMemoryOf : public ::testing::Test {
 protected:
  static constexpr uint64_t kGiB = uint64_t{1} << 30;

  void meminfo(uint64_t total, uint64_t available) const {
    root_.write("proc/meminfo", "MemTotal:  " + std::to_string(total / 1024) +
                                    " kB\nMemFree:  1 kB\nMemAvailable: " + std::to_string(available / 1024) + " kB\n");
  }
  void blocks(int online, int offline) const {
    root_.write("sys/devices/system/memory/block_size_bytes", "40000000\n");  // 1 GiB, in hexadecimal digits
    for (int i = 0; i < online + offline; ++i) {
      root_.write("sys/devices/system/memory/memory" + std::to_string(i) + "/online", i < online ? "1\n" : "0\n");
    }
  }
  void group(const std::string& folder, const std::string& limit, uint64_t used, uint64_t file) const {
    root_.write("sys/fs/cgroup/" + folder + "memory.max", limit + "\n");
    root_.write("sys/fs/cgroup/" + folder + "memory.current", std::to_string(used) + "\n");
    root_.write("sys/fs/cgroup/" + folder + "memory.stat", "anon 5\ninactive_file " + std::to_string(file) + "\n");
  }
  uint64_t available() const { return available_host_memory(root_.path()); }
  uint64_t allocatable() const { return allocatable_host_memory(root_.path()); }

  testing::TestRoot root_;
};

TEST_F(HostMemoryOf, AMachineIsWhatTheSystemCouldGive) {
  meminfo(126 * kGiB, 100 * kGiB);
  EXPECT_EQ(available(), 100 * kGiB);
  blocks(128, 4);
  EXPECT_EQ(available(), 100 * kGiB) << "what the kernel keeps for itself does not come";
  EXPECT_EQ(allocatable(), 100 * kGiB);
}

TEST_F(HostMemoryOf, AVirtualMachineThatGrowsIsWhatItWillHave) {
  meminfo(31 * kGiB, 29 * kGiB);
  blocks(128, 0);
  EXPECT_EQ(available(), 29 * kGiB + (124 - 31) * kGiB);
  EXPECT_EQ(allocatable(), available());
  group("", std::to_string(64 * kGiB), 4 * kGiB, 0);
  root_.write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(available(), 60 * kGiB) << "no more than its control group allows";
}

TEST_F(HostMemoryOf, AControlGroupHasTheLeastLimitOfThoseAroundIt) {
  meminfo(126 * kGiB, 100 * kGiB);
  root_.write("proc/self/cgroup", "3:cpu,cpuacct:/other\n0::/jobs/one\n");
  group("", "max", 90 * kGiB, 0);
  group("jobs/", std::to_string(40 * kGiB), 30 * kGiB, 25 * kGiB);
  group("jobs/one/", "max", 20 * kGiB, 0);
  EXPECT_EQ(available(), 35 * kGiB) << "pages of files can be dropped";
  group("jobs/one/", std::to_string(22 * kGiB), 20 * kGiB, 1 * kGiB);
  EXPECT_EQ(allocatable(), 3 * kGiB);
  group("jobs/one/", std::to_string(10 * kGiB), 20 * kGiB, 0);
  EXPECT_EQ(allocatable(), 0u);
}

TEST_F(HostMemoryOf, AControlGroupOfVersion1IsReadToo) {
  meminfo(126 * kGiB, 100 * kGiB);
  root_.write("proc/self/cgroup", "5:devices:/job\n4:memory:/job\n0::/\n");
  const std::string folder = "sys/fs/cgroup/memory/";
  root_.write(folder + "memory.limit_in_bytes", "9223372036854771712\n");
  root_.write(folder + "memory.usage_in_bytes", "1\n");
  EXPECT_EQ(allocatable(), 100 * kGiB) << "no limit";
  root_.write(folder + "job/memory.limit_in_bytes", std::to_string(8 * kGiB) + "\n");
  root_.write(folder + "job/memory.usage_in_bytes", std::to_string(3 * kGiB) + "\n");
  root_.write(folder + "job/memory.stat", "total_inactive_file " + std::to_string(1 * kGiB) + "\n");
  EXPECT_EQ(allocatable(), 6 * kGiB);
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

DeviceInfo gpu_of(const char* name, int major, int minor) { return {.name = name, .major = major, .minor = minor}; }

TEST(GpuRefusal, NamesAGpuThatTheBuildHasNoCodeFor) {
  const auto refusal = refusal_by_code(1, gpu_of("NVIDIA A100-SXM4-80GB", 8, 0), "90a");
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->reason,
            "this build has no code for cuda:1 (NVIDIA A100-SXM4-80GB, compute capability 8.0): it has code for 90a");
  EXPECT_EQ(refusal->remedy, "build Hone with cmake -DHONE_CUDA_ARCHITECTURES=80");
  EXPECT_EQ(refusal_by_code(0, gpu_of("NVIDIA H200", 9, 0), "80")->remedy,
            "build Hone with cmake -DHONE_CUDA_ARCHITECTURES=90a");
  EXPECT_FALSE(refusal_by_code(0, gpu_of("NVIDIA H200", 9, 0), "90a"));
}

TEST(GpuRefusal, NamesGpusWithoutBfloat16WhateverTheBuildHas) {
  for (const auto& [gpu, capability] :
       std::map<const char*, std::string>{{"Tesla V100-SXM2-32GB", "7.0"}, {"Tesla T4", "7.5"}}) {
    const auto refusal = refusal_by_code(0, gpu_of(gpu, 7, capability[2] - '0'), "70, 75, compute_70");
    ASSERT_TRUE(refusal) << gpu;
    EXPECT_EQ(refusal->reason, std::string("cuda:0 (") + gpu + ", compute capability " + capability +
                                   ") has no bfloat16 arithmetic, which Hone needs");
    EXPECT_THAT(refusal->remedy, HasSubstr("compute capability 8.0 or later"));
  }
}

TEST(GpuRefusal, AReleaseHasCodeForEveryGpuFrom80On) {
  for (const int capability : {80, 86, 87, 89, 90, 100, 103, 110, 120, 121, 130}) {
    EXPECT_FALSE(refusal_by_code(0, gpu_of("GPU", capability / 10, capability % 10), "80, 90a, 100, 120, compute_80"))
        << capability;
  }
}

TEST(GpuRefusal, TellsAnOldDriverFromNone) {
  EXPECT_EQ(driver_problem("", "", "13.0"), "no NVIDIA driver is installed");
  EXPECT_EQ(driver_problem("550.54", "12.4", "13.0"),
            "the NVIDIA driver 550.54 is too old: it is for CUDA 12.4, and this program for CUDA 13.0");
  EXPECT_EQ(driver_fix("13.0"),
            "install driver 580 or newer; on a data-centre GPU NVIDIA's package cuda-compat-13-0 is enough");
}

TEST(GpuRefusal, SaysHowMuchMemoryIsFreeIfItIsTooLittle) {
  const auto refusal = refusal_by_memory(0, gpu_of("NVIDIA GeForce RTX 4090", 8, 9),
                                         {.free = size_t{410} << 20, .total = size_t{24564} << 20});
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->reason,
            "cuda:0 (NVIDIA GeForce RTX 4090) has 0.43 of 25.76 GB of memory free, too little to begin with");
  EXPECT_THAT(refusal->remedy, HasSubstr("nvidia-smi"));
  EXPECT_FALSE(refusal_by_memory(0, gpu_of("GPU", 8, 9), {.free = size_t{8} << 30, .total = size_t{24} << 30}));
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
