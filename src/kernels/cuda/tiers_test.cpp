#include "kernels/cuda/tiers.h"

#include <gtest/gtest.h>

namespace hone::cuda {
namespace {

TEST(KernelTiers, AreThoseOfTheGpu) {
  const KernelTiers hopper = kernel_tiers_of({90, 227 << 10});
  EXPECT_EQ(hopper.attention, Tier::kSm90);
  EXPECT_EQ(hopper.grouped_gemm, Tier::kSm90);
  EXPECT_EQ(hopper.loss_rows, Tier::kSm90);
  EXPECT_EQ(hopper.matmul_choice, Tier::kSm90);
  EXPECT_EQ(hopper.low_rank, Tier::kSm80);
  EXPECT_EQ(hopper.delta_rule, Tier::kSm80);
  const KernelTiers turing = kernel_tiers_of({75, 64 << 10});
  EXPECT_EQ(turing.low_rank, Tier::kGeneral);
  EXPECT_EQ(turing.delta_rule, Tier::kGeneral);
}

TEST(KernelTiers, Sm90IsNotWhatComesAfterIt) {
  for (const int later : {100, 103, 120}) {
    EXPECT_EQ(kernel_tiers_of({later, 227 << 10}).attention, Tier::kGeneral) << later;
    EXPECT_EQ(kernel_tiers_of({later, 227 << 10}).low_rank, Tier::kSm80) << later;
  }
}

TEST(KernelTiers, AKernelNeedsItsSharedMemory) {
  for (const int gpu : {80, 86, 89, 120}) {
    EXPECT_EQ(kernel_tiers_of({gpu, gpu == 80 ? 163 << 10 : 99 << 10}).delta_rule, Tier::kGeneral) << gpu;
    EXPECT_EQ(kernel_tiers_of({gpu, 99 << 10}).low_rank, Tier::kSm80) << gpu;
  }
}

}  // namespace
}  // namespace hone::cuda
