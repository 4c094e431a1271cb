#include "core/cpu_peaks.h"

#include <gtest/gtest.h>

#include "core/cpu_features.h"
#include "core/thread_pool.h"

namespace hone {
namespace {

TEST(CpuPeaks, AreThoseOfTheWidestUnits) {
  ThreadPool one(1);
  const double f32 = measured_peak_flops(DType::kF32, one), bf16 = measured_peak_flops(DType::kBF16, one);
  EXPECT_GT(f32, 1e8);
  EXPECT_LT(f32, 1e12) << "two units of 32 FLOPs at 5 GHz are 0.32e12";
  if (best_isa() >= Isa::kAmx) {
    // A tile product every 16 cycles against 64 float32 FLOPs a cycle: 16 times, less what others on the machine took.
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
