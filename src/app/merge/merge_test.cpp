#include "app/merge/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hone {
namespace {

DecoderConfig model(int64_t layers, int64_t hidden) {
  DecoderConfig config;
  config.layers.resize(static_cast<size_t>(layers));
  config.hidden_size = hidden;
  return config;
}

TEST(Merge, TheBoundGrowsWithDepthAndWidthButCatchesALostAdapter) {
  const double tiny = merge_tolerance(model(2, 64)), large = merge_tolerance(model(48, 4096));
  EXPECT_NEAR(tiny, 16 * std::sqrt(64 * 9.0) / 16777216, 1e-9);
  EXPECT_LT(tiny, large);
  EXPECT_LT(large, 1e-3);  // a trained adapter changes logits by more
  EXPECT_GT(rounding_tolerance(model(2, 64), DType::kBF16), rounding_tolerance(model(2, 64), DType::kF16));
  EXPECT_EQ(rounding_tolerance(model(2, 64), DType::kF32), tiny);
}

TEST(Merge, DifferencesAreRelativeAndNeverHideNaN) {
  const std::vector<float> b = {3, 4}, a = {3, 4.5};
  EXPECT_NEAR(relative_difference(a, b), 0.1, 1e-12);
  EXPECT_EQ(relative_difference(b, b), 0.0);
  const std::vector<float> bad = {3, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isinf(relative_difference(bad, b)));
}

TEST(Merge, PromptsWithoutATokenizerAreTokensOfTheModel) {
  const auto prompts = probe_prompts(nullptr, 10);
  ASSERT_FALSE(prompts.empty());
  for (const auto& prompt : prompts) {
    EXPECT_GT(prompt.size(), 8u);
    for (int32_t id : prompt) EXPECT_TRUE(id >= 0 && id < 10);
  }
  EXPECT_EQ(prompts, probe_prompts(nullptr, 10));
}

}  // namespace
}  // namespace hone
