#include "core/cpu_features.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "core/error.h"

namespace hone {
namespace {

TEST(CpuFeatures, LevelsUpToTheBestCanBeForced) {
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa > best_isa()) {
      EXPECT_THROW(force_isa(isa), UserError);
      continue;
    }
    force_isa(isa);
    EXPECT_EQ(active_isa(), isa);
  }
  force_isa(best_isa());
}

TEST(CpuFeatures, NamesAreDistinct) {
  EXPECT_EQ(name_of(Isa::kBaseline), "baseline");
  EXPECT_EQ(name_of(Isa::kAvx2), "avx2");
  EXPECT_EQ(name_of(Isa::kAvx512), "avx512");
  EXPECT_EQ(name_of(Isa::kAmx), "amx");
}

// The kernel's list is an independent reading of cpuid and XCR0 (it calls fp16 and bf16 the same names).
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

}  // namespace
}  // namespace hone
