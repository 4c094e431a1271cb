#include "core/cuda_code.h"

#include <gtest/gtest.h>

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
