#include "kernels/cuda/kernel_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/stream/process_kernels.h"

namespace hone::cuda {
namespace {

using ::testing::HasSubstr;

KernelLimit limit(const char* names, int local_rank = 0) { return parse_kernel_limit(names, local_rank, "--tier"); }

std::string refusal(const char* names, int local_rank) {
  try {
    limit(names, local_rank);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(KernelLimit, OneNameIsForAllRanks) {
  for (const KernelTier tier : {KernelTier::kGeneral, KernelTier::kSm80, KernelTier::kSm90, KernelTier::kSm100}) {
    EXPECT_EQ(limit(name_of(tier).c_str(), 0).tier, tier);
    EXPECT_EQ(limit(name_of(tier).c_str(), 7).tier, tier);
    EXPECT_EQ(limit(name_of(tier).c_str()).shared_memory, SIZE_MAX);
  }
}

TEST(KernelLimit, AGpuLimitsTierAndSharedMemory) {
  EXPECT_EQ(limit("a100-80gb").tier, KernelTier::kSm80);
  EXPECT_EQ(limit("a100-80gb").shared_memory, size_t{163} << 10);
  EXPECT_EQ(limit("rtx-4090").tier, KernelTier::kSm80);
  EXPECT_EQ(limit("rtx-4090").shared_memory, size_t{99} << 10);
  EXPECT_EQ(limit("h100").tier, KernelTier::kSm90);
  EXPECT_EQ(limit("b200").tier, KernelTier::kSm80) << "no kernel of its own yet";
  EXPECT_EQ(limit("b200").shared_memory, size_t{227} << 10);
}

TEST(KernelLimit, AListHasOneForEachRankOfAHost) {
  EXPECT_EQ(limit("sm90,sm80,general", 0).tier, KernelTier::kSm90);
  EXPECT_EQ(limit("sm90,sm80,general", 1).tier, KernelTier::kSm80);
  EXPECT_EQ(limit("sm90,sm80,general", 2).tier, KernelTier::kGeneral);
  EXPECT_EQ(limit("sm90,rtx-4090", 1).shared_memory, size_t{99} << 10);
  EXPECT_THAT(refusal("sm90,sm80", 2), HasSubstr("no tier for local rank 2"));
}

TEST(KernelLimit, OtherNamesAreRefusedOnEveryRank) {
  EXPECT_THAT(refusal("sm89", 0), HasSubstr("'sm89' is neither a tier of GPU kernels"));
  EXPECT_THAT(refusal("rtx4090", 0), HasSubstr("Did you mean 'rtx-4090'"));
  EXPECT_THAT(refusal("sm90,volta", 0), HasSubstr("'volta'"));
  EXPECT_THAT(refusal("sm90,", 0), HasSubstr("''"));
  EXPECT_THAT(refusal("", 0), HasSubstr("''"));
}

}  // namespace
}  // namespace hone::cuda
