#include "session/host_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace hone {
namespace {

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
