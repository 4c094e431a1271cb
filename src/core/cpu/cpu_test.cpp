#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "core/base/error.h"
#include "core/cpu/cpu_peaks.h"
#include "core/cpu/isa_testing.h"
#include "core/cpu/thread_pool.h"
#include "core/files/environment_testing.h"

namespace hone {
namespace {

TEST(CpuFeatures, LevelsUpToTheBestCanBeForced) {
  const Isa before = active_isa();
  for (const Isa isa : kIsas) {
    if (isa > best_isa()) {
      EXPECT_THROW(force_isa(isa), UserError);
      continue;
    }
    const ForcedIsa forced(isa);
    EXPECT_EQ(active_isa(), isa);
  }
  EXPECT_EQ(active_isa(), before);
  EXPECT_EQ(supported_isas().back(), best_isa());
}

TEST(CpuFeatures, TheEnvironmentNamesALevel) {
  {
    const StatedVariable empty("HONE_INSTRUCTION_SET", "");
    EXPECT_FALSE(stated_isa().has_value());
  }
  for (const Isa isa : kIsas) {
    const StatedVariable stated("HONE_INSTRUCTION_SET", std::string(name_of(isa)));
    if (isa <= best_isa()) {
      EXPECT_EQ(stated_isa(), isa);
    } else {
      EXPECT_THROW(stated_isa(), UserError) << name_of(isa);
    }
  }
  for (const char* wrong : {"avx", "AVX2", "avx2 ", "avx10", "0"}) {
    const StatedVariable stated("HONE_INSTRUCTION_SET", wrong);
    EXPECT_THROW(stated_isa(), UserError) << wrong;
  }
}

TEST(CpuFeatures, ALevelThatIsNamedIsTheOneThatRuns) {
  // The process chooses its level once, from the environment in which it began.
  EXPECT_EQ(active_isa(), stated_isa().value_or(best_isa()));
}

TEST(CpuFeatures, NamesAreDistinct) {
  EXPECT_EQ(name_of(Isa::kBaseline), "baseline");
  EXPECT_EQ(name_of(Isa::kAvx2), "avx2");
  EXPECT_EQ(name_of(Isa::kAvx512), "avx512");
  EXPECT_EQ(name_of(Isa::kAmx), "amx");
}

// The kernel's list reads cpuid and XCR0 independently (it uses the same names for fp16 and bf16).
TEST(CpuFeatures, AgreesWithTheOperatingSystem) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (std::getline(file, line) && flags.empty()) {
    if (line.rfind("flags", 0) == 0) flags = line;
  }
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags";
  std::istringstream words(flags);
  const std::vector<std::string> present{std::istream_iterator<std::string>(words), {}};
  for (const CpuFeature& feature : cpu_features()) {
    const bool listed = std::find(present.begin(), present.end(), feature.name) != present.end();
    EXPECT_EQ(feature.present, listed) << feature.name;
  }
}

TEST(CpuFeatures, ProcessorHasAName) { EXPECT_FALSE(cpu_name().empty()); }

TEST(CpuPeaks, MemoryIsReadAtARateOfMemory) {
  ThreadPool one(1);
  const double rate = measured_read_rate(one);
  EXPECT_GT(rate, 1e8);
  EXPECT_LT(rate, 3e11) << "a core reads its second cache at 64 bytes a cycle";
}

TEST(CpuPeaks, AreThoseOfTheWidestUnits) {
  ThreadPool one(1);
  const double f32 = measured_peak_flops(DType::kF32, one), bf16 = measured_peak_flops(DType::kBF16, one);
  EXPECT_GT(f32, 1e8);
  EXPECT_LT(f32, 1e12) << "two units of 32 FLOPs at 5 GHz are 0.32e12";
  if (best_isa() >= Isa::kAmx) {
    // A tile product every 16 cycles versus 64 float32 FLOPs per cycle: 16 times, less the load of other processes.
    EXPECT_GT(bf16, 4 * f32);
    EXPECT_LT(bf16, 2e13);
    const double int8 = measured_peak_flops(DType::kI8, one);
    EXPECT_GT(int8, bf16) << "twice as many products an instruction, less what others took";
    EXPECT_LT(int8, 4e13);
  } else {
    EXPECT_LT(bf16, 3 * f32) << "the same loop";
    EXPECT_GT(3 * bf16, f32);
  }
}

}  // namespace
}  // namespace hone
