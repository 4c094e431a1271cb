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
  EXPECT_EQ(hopper.ssd_scan, Tier::kSm80);
  const KernelTiers turing = kernel_tiers_of({75, kib(64)});
  EXPECT_EQ(turing.low_rank, Tier::kGeneral);
  EXPECT_EQ(turing.delta_rule, Tier::kGeneral);
}

TEST(KernelTiers, Sm90IsNotWhatComesAfterIt) {
  for (const int later : {100, 103, 120}) {
    EXPECT_EQ(kernel_tiers_of({later, kib(227)}).attention, Tier::kSm80) << later;
    EXPECT_EQ(kernel_tiers_of({later, kib(227)}).loss_rows, Tier::kGeneral) << later;
  }
}

TEST(KernelTiers, NoTensorCoreGpuFallsToTheGeneralKernels) {
  for (const int gpu : {80, 86, 87, 89, 100, 103, 120, 121}) {
    const bool large = gpu == 80 || gpu == 87 || gpu == 100 || gpu == 103;
    const KernelTiers tiers = kernel_tiers_of({gpu, kib(large ? 163 : 99)});
    EXPECT_EQ(tiers.attention, Tier::kSm80) << gpu;
    EXPECT_EQ(tiers.grouped_gemm, Tier::kSm80) << gpu;
    EXPECT_EQ(tiers.low_rank, Tier::kSm80) << gpu;
    EXPECT_EQ(tiers.delta_rule, Tier::kSm80) << gpu;
    EXPECT_EQ(tiers.ssd_scan, Tier::kSm80) << gpu;
  }
}

TEST(KernelTiers, TestsRunThoseOfSmallerGpus) {
  const GpuProperties hopper{90, kib(227)};
  EXPECT_EQ(kernel_tiers_of(hopper, {}).attention, Tier::kSm90);
  const KernelTiers ada = kernel_tiers_of(hopper, {Tier::kSm80, kib(99)});
  EXPECT_EQ(ada.attention, Tier::kSm80);
  EXPECT_EQ(ada.grouped_gemm, Tier::kSm80);
  EXPECT_EQ(ada.loss_rows, Tier::kGeneral);
  EXPECT_EQ(ada.shared_memory, kib(99));
  EXPECT_EQ(kernel_tiers_of(hopper, {Tier::kGeneral}).low_rank, Tier::kGeneral);
  EXPECT_EQ(kernel_tiers_of({89, kib(99)}, {Tier::kSm90}).attention, Tier::kSm80);
}

}  // namespace
}  // namespace hone::cuda
