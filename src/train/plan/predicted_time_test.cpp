#include "train/plan/predicted_time.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

TEST(PredictedTime, IsTheLongerOfComputingAndCopyingInEachDirection) {
  const GpuModel gpu{.name = "", .bf16_tflops = 1000, .f32_tflops = 100, .memory_gbs = 4000, .link_gbs = 50};
  MemoryPlan plan;
  plan.work = {.forward = {60e12, 280e9}, .recompute = {30e12, 0}, .backward = {120e12, 0}};
  EXPECT_NEAR(predicted_seconds(plan, gpu), 0.2 + 0.25, 1e-9) << "0.6 of products, 0.7 of memory";
  plan.host_activations = 4'000'000'000;
  EXPECT_NEAR(predicted_seconds(plan, gpu), 0.2 + 0.25, 1e-9) << "beside 0.1 s of copies";
  plan.host_activations = 12'000'000'000;
  EXPECT_NEAR(predicted_seconds(plan, gpu), 0.3 + 0.3, 1e-9);
  plan.parameters.weights = plan.parameters.host = 8'000'000'000;
  EXPECT_NEAR(predicted_seconds(plan, gpu), 0.3 + 0.5, 1e-9) << "weights come in backward as the values do";
  plan.parameters.on_host = plan.parameters.host;
  EXPECT_NEAR(predicted_seconds(plan, gpu), 0.3 + 0.3, 1e-9) << "these stay there";
  plan.float32 = true;
  EXPECT_NEAR(predicted_seconds(plan, gpu), 1.1 + 2.5, 1e-9);
}

}  // namespace
}  // namespace hone
