#include "core/process_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

std::string refusal(const char* names, int local_rank) {
  try {
    parse_kernel_tier(names, local_rank, "--tier");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(KernelTiers, OneNameIsForAllRanks) {
  for (const KernelTier tier : {KernelTier::kGeneral, KernelTier::kSm80, KernelTier::kSm90, KernelTier::kSm100}) {
    EXPECT_EQ(parse_kernel_tier(name_of(tier), 0, "--tier"), tier);
    EXPECT_EQ(parse_kernel_tier(name_of(tier), 7, "--tier"), tier);
  }
}

TEST(KernelTiers, AListHasOneForEachRankOfAHost) {
  EXPECT_EQ(parse_kernel_tier("sm90,sm80,general", 0, "--tier"), KernelTier::kSm90);
  EXPECT_EQ(parse_kernel_tier("sm90,sm80,general", 1, "--tier"), KernelTier::kSm80);
  EXPECT_EQ(parse_kernel_tier("sm90,sm80,general", 2, "--tier"), KernelTier::kGeneral);
  EXPECT_THAT(refusal("sm90,sm80", 2), HasSubstr("no tier for local rank 2"));
}

TEST(KernelTiers, OtherNamesAreRefusedOnEveryRank) {
  EXPECT_THAT(refusal("sm89", 0), HasSubstr("'sm89' is not a tier of GPU kernels"));
  EXPECT_THAT(refusal("sm90,volta", 0), HasSubstr("'volta'"));
  EXPECT_THAT(refusal("sm90,", 0), HasSubstr("''"));
  EXPECT_THAT(refusal("", 0), HasSubstr("''"));
}

}  // namespace
}  // namespace hone
