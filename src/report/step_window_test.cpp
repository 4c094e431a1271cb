#include "report/step_window.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hone {
namespace {

TEST(StepWindow, OneStepComesBackBitForBit) {
  StepWindow window;
  window.add({.step = 1, .loss = 0.1, .step_supervised_tokens = 3});
  EXPECT_EQ(window.take().loss, 0.1) << "0.1 * 3 / 3 would not be 0.1";
  EXPECT_TRUE(window.empty());
}

TEST(StepWindow, LossIsTheMeanOverSupervisedTokens) {
  StepWindow window;
  window.add({.step = 1, .loss = 1.0, .mean_token_accuracy = 0.5, .step_supervised_tokens = 300});
  window.add({.step = 2, .loss = 5.0, .mean_token_accuracy = 0.0, .step_supervised_tokens = 100});
  const StepMetrics mean = window.take();
  EXPECT_DOUBLE_EQ(mean.loss, 2.0);
  EXPECT_DOUBLE_EQ(*mean.mean_token_accuracy, 0.375);
  EXPECT_EQ(mean.step, 2);
}

TEST(StepWindow, SpeedIsTotalOverTotalTime) {
  StepWindow window;
  window.add({.tokens_per_second = 1000, .step_time = 1.0});
  window.add({.tokens_per_second = 100, .step_time = 9.0});
  const StepMetrics mean = window.take();
  EXPECT_DOUBLE_EQ(mean.tokens_per_second, 190.0);
  EXPECT_DOUBLE_EQ(mean.step_time, 5.0);
}

TEST(StepWindow, MemoryIsTheLargestDroppedTokensAddAndTheRestIsTheLast) {
  StepWindow window;
  window.add({.grad_norm = 3, .max_alloc = 20.0, .router_dropped_tokens = 1.0});
  window.add({.grad_norm = 2, .max_alloc = 10.0, .router_dropped_tokens = 2.0, .dropped_samples = 7.0});
  const StepMetrics mean = window.take();
  EXPECT_EQ(mean.grad_norm, 2);
  EXPECT_EQ(mean.max_alloc, 20.0);
  EXPECT_EQ(mean.router_dropped_tokens, 3.0);
  EXPECT_EQ(mean.dropped_samples, 7.0);
  EXPECT_FALSE(mean.router_entropy.has_value());
}

TEST(StepWindow, ADatasetThatWasNotInEveryStepHasItsOwnMean) {
  StepWindow window;
  window.add({.dataset_loss = {{"chat", 1.0, 1}}});
  window.add({.dataset_loss = {{"chat", 4.0, 2}, {"faq", 9.0, 5}}});
  const StepMetrics mean = window.take();
  ASSERT_EQ(mean.dataset_loss.size(), 2u);
  EXPECT_DOUBLE_EQ(mean.dataset_loss[0].value, 3.0);
  EXPECT_DOUBLE_EQ(mean.dataset_loss[1].value, 9.0);
}

TEST(StepWindow, NaNIsNotAveragedAway) {
  StepWindow window;
  window.add({.loss = std::numeric_limits<double>::quiet_NaN(), .step_supervised_tokens = 1});
  window.add({.loss = 1.0, .step_supervised_tokens = 1});
  EXPECT_TRUE(std::isnan(window.take().loss));
}

}  // namespace
}  // namespace hone
