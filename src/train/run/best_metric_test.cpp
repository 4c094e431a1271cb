#include "train/run/best_metric.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace hone {
namespace {

/// Numbers of consecutive evaluations without improvement after each value, as the trainer counts them.
std::vector<int> counts(const BestMetric& metric, const std::vector<double>& values) {
  std::optional<double> best;
  std::vector<int> result;
  int count = 0;
  for (const double value : values) {
    count = metric.improves(value, best) ? 0 : count + 1;
    if (metric.better(value, best)) best = value;
    result.push_back(count);
  }
  return result;
}

TEST(BestMetric, CountsEvaluationsInARowThatAreNotBetter) {
  EXPECT_EQ(counts({}, {3.0, 2.0, 2.0, 2.5, 1.5, 1.6}), (std::vector<int>{0, 0, 1, 2, 0, 1}));
  EXPECT_EQ(counts({.greater_is_better = true}, {0.3, 0.2, 0.4, 0.4}), (std::vector<int>{0, 1, 0, 1}));
}

TEST(BestMetric, StepsSmallerThanTheThresholdDoNotAddUpToAnImprovement) {
  EXPECT_EQ(counts({.threshold = 0.1}, {1.0, 0.95, 0.9, 0.85, 0.7}), (std::vector<int>{0, 1, 2, 3, 0}));
}

TEST(BestMetric, ANumberThatIsLostIsNeverTheBest) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(counts({}, {nan, 1.0, nan, -inf}), (std::vector<int>{1, 0, 1, 2}));
}

}  // namespace
}  // namespace hone
