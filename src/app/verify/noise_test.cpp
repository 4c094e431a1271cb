// Tests of bounds that the reference's noise widens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "app/verify/check.h"
#include "app/verify/verify.h"
#include "core/text/json.h"

namespace hone {
namespace {

constexpr double kBound = 2e-5;
const std::vector<double> kOnes = {1, 1, 1};

Check three_steps(const std::vector<double>& errors, const std::vector<double>& noise) {
  std::vector<double> ours;
  for (double error : errors) ours.push_back(1 + error);
  return compare_numbers("loss", ours, kOnes, kBound, noise);
}

TEST(ReferenceNoise, TwiceOfItIsTheBoundOfItsNumber) {
  const Check check = three_steps({0, 0, 5e-4}, {0, 0, 3e-4});
  EXPECT_TRUE(check.ok());
  EXPECT_DOUBLE_EQ(check.bound, 6e-4);
  EXPECT_FALSE(three_steps({0, 0, 5e-4}, {}).ok());
}

TEST(ReferenceNoise, WidensNoOtherBoundOfTheRow) {
  EXPECT_FALSE(three_steps({0, 5e-4, 0}, {0, 0, 3e-4}).ok());
  // The row has the number with the largest error / bound, not the largest error.
  const Check check = three_steps({0, 3e-5, 5e-4}, {0, 0, 3e-4});
  EXPECT_FALSE(check.ok());
  EXPECT_NEAR(check.error, 3e-5, 1e-12);
  EXPECT_EQ(check.bound, kBound);
}

TEST(ReferenceNoise, NeverNarrowsABound) {
  const Check check = three_steps({1.5e-5, 0, 0}, {0, 1e-9, kBound / 2});
  EXPECT_TRUE(check.ok());
  EXPECT_EQ(check.bound, kBound);
  EXPECT_EQ(check.noise.count, 0);
  EXPECT_EQ(three_steps({1.5e-5, 0, 0}, {1e-9, 1e-9, 1e-9}).bound, kBound);
}

TEST(ReferenceNoise, ARowFailsAboveTwiceOfIt) {
  EXPECT_TRUE(three_steps({0, 0, 5.9e-4}, {0, 0, 3e-4}).ok());
  EXPECT_FALSE(three_steps({0, 0, 6.1e-4}, {0, 0, 3e-4}).ok());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(three_steps({0, nan, 5e-4}, {0, 3e-4, 3e-4}).ok());
  EXPECT_FALSE(three_steps({0, 5e-4, 0}, {0, nan, 0}).ok());
}

/// Compares two tensors whose elements training changed by 1, with these errors.
std::vector<Check> changes(float first, float second, const ChangeNoise& noise) {
  const ReferenceTensors reference = {{"first", HostTensor{{2}, {1, 1}}}, {"second", HostTensor{{2}, {1, 1}}}};
  const HostTensors ours = {{"first", {{2}, {1 + first, 1}}}, {"second", {{2}, {1 + second, 1}}}};
  return compare_updates("change", ours, reference, "final", 2e-2, noise);
}

TEST(ReferenceNoise, IsOfEachTensorThatChanged) {
  const ChangeNoise noise = {.all = 0.04, .tensors = {{"first", 0.05}}};
  EXPECT_FALSE(changes(0.1f, 0, {})[0].ok());
  std::vector<Check> rows = changes(0.1f, 0, noise);  // 0.05 of all, 0.07 of the first
  EXPECT_TRUE(rows[0].ok());
  EXPECT_DOUBLE_EQ(rows[0].bound, 0.08);
  EXPECT_TRUE(rows[1].ok());
  EXPECT_DOUBLE_EQ(rows[1].bound, 0.1);
  EXPECT_EQ(rows[1].worst[0].name, "first");
  rows = changes(0.1f, 0.04f, noise);  // 0.028 of the second, which has no noise
  EXPECT_TRUE(rows[0].ok());
  EXPECT_FALSE(rows[1].ok());
  EXPECT_EQ(rows[1].bound, 2e-2);
  EXPECT_EQ(rows[1].worst[0].name, "second");
  EXPECT_FALSE(changes(0.15f, 0, noise)[1].ok());
  EXPECT_FALSE(changes(0.2f, 0, noise)[0].ok());
}

TEST(ReferenceNoise, WidensWhatIsComputedOnce) {
  const std::vector<double> ours = {1.003, 1};
  const std::vector<double> ones = {1, 1};
  const std::vector<float> logits = {1.003f, 1.0f}, expected = {1.0f, 1.0f};
  const auto rows = [&](double noise) {
    return std::vector<Check>{compare_number("loss", ours[0], 1, kBound, noise),
                              compare_absolute("token losses", ours, ones, kBound, noise),
                              compare_logits("logits", logits, expected, kBound, noise)};
  };
  for (const Check& check : rows(0.002)) {
    EXPECT_TRUE(check.ok()) << check.name;
    EXPECT_DOUBLE_EQ(check.bound, 0.004) << check.name;
    EXPECT_EQ(check.noise.count, 1) << check.name;
  }
  for (const Check& check : rows(0.001)) EXPECT_FALSE(check.ok()) << check.name;
  for (const Check& check : rows(kBound / 4)) {
    EXPECT_EQ(check.bound, kBound) << check.name;
    EXPECT_EQ(check.noise.count, 0) << check.name;
  }
}

TEST(ReferenceNoise, IsOfEachGradient) {
  const ReferenceTensors reference = {{"first", HostTensor{{2}, {1, 1}}}, {"second", HostTensor{{2}, {1, 1}}}};
  const auto row = [&](float first, float second, const GradientNoise& noise) {
    const HostTensors ours = {{"first", {{2}, {1 + first, 1 + first}}}, {"second", {{2}, {1 + second, 1 + second}}}};
    return compare_gradients("gradients", ours, reference, "file", 1e-4, noise)[0];
  };
  const GradientNoise noise = {{"first", 1e-3}};
  EXPECT_FALSE(row(1.5e-3f, 0, {}).ok());
  EXPECT_TRUE(row(1.5e-3f, 0, noise).ok());
  EXPECT_FALSE(row(2.5e-3f, 0, noise).ok());
  const Check second = row(1.5e-3f, 2e-4f, noise);
  EXPECT_FALSE(second.ok());
  EXPECT_EQ(second.bound, 1e-4);
  EXPECT_EQ(second.worst[0].name, "second");
}

TEST(ReferenceNoise, IsNamedInTheRowWhoseBoundItSets) {
  VerifyReport report{"tiny", "float32", changes(0.1f, 0, {.all = 0.04, .tensors = {{"first", 0.05}}})};
  std::string table = report_table(report);
  EXPECT_THAT(table, ::testing::HasSubstr("of the change; bound: twice the reference's own noise 0.04\n"));
  EXPECT_THAT(table, ::testing::HasSubstr("bound of 1 of 2: twice the reference's own noise, at most 0.05\n"));
  EXPECT_EQ(report_json(report)["rows"][1]["noise"], Json({{"bounds", 1}, {"of", 2}, {"largest", 0.05}}));
  report.checks = {three_steps({0, 0, 0}, {0, 0, kBound / 2})};
  EXPECT_THAT(report_table(report), ::testing::Not(::testing::HasSubstr("noise")));
  EXPECT_FALSE(report_json(report)["rows"][0].contains("noise"));
}

TEST(WorseCheck, IsFurtherOverItsBound) {
  const auto check = [](double error, double bound) { return compare_number("row", 1 + error, 1, bound); };
  EXPECT_TRUE(is_worse(check(3e-5, 2e-5), check(1e-3, 2e-3)));
  EXPECT_FALSE(is_worse(check(1e-3, 2e-3), check(3e-5, 2e-5)));
  EXPECT_TRUE(is_worse(check(std::nan(""), 1), check(1, 1e-5)));
  EXPECT_FALSE(is_worse(check(1, 1e-5), check(std::nan(""), 1)));
  EXPECT_FALSE(is_worse(check(std::nan(""), 1), check(std::nan(""), 1)));
  EXPECT_TRUE(is_worse(check(1, 0), check(1, 1e-5)));
}

}  // namespace
}  // namespace hone
