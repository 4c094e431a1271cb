#include "kernels/cuda/tiers.h"

#include <gtest/gtest.h>

namespace hone::cuda {
namespace {

constexpr size_t kib(size_t count) { return count << 10; }

TEST(KernelTiers, AreThoseOfTheGpu) {
  const KernelTiers hopper = kernel_tiers_of({90, kib(227)});
  EXPECT_EQ(hopper.attention, Tier::kSm90);
  EXPECT_EQ(hopper.grouped_gemm, Tier::kSm90);
  EXPECT_EQ(hopper.loss_rows, Tier::kSm90);
  EXPECT_EQ(hopper.matmul_choice, Tier::kSm90);
  EXPECT_EQ(hopper.low_rank, Tier::kSm80);
  EXPECT_EQ(hopper.delta_rule, Tier::kSm80);
  const KernelTiers turing = kernel_tiers_of({75, kib(64)});
  EXPECT_EQ(turing.low_rank, Tier::kGeneral);
  EXPECT_EQ(turing.delta_rule, Tier::kGeneral);
}

TEST(KernelTiers, Sm90IsNotWhatComesAfterIt) {
  for (const int later : {100, 103, 120}) {
    EXPECT_EQ(kernel_tiers_of({later, kib(227)}).attention, Tier::kGeneral) << later;
    EXPECT_EQ(kernel_tiers_of({later, kib(227)}).low_rank, Tier::kSm80) << later;
  }
}

TEST(KernelTiers, AKernelNeedsItsSharedMemory) {
  for (const int gpu : {80, 86, 89, 120}) {
    EXPECT_EQ(kernel_tiers_of({gpu, kib(gpu == 80 ? 163 : 99)}).delta_rule, Tier::kGeneral) << gpu;
    EXPECT_EQ(kernel_tiers_of({gpu, kib(99)}).low_rank, Tier::kSm80) << gpu;
  }
}

}  // namespace
}  // namespace hone::cuda
