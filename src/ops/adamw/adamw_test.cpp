#include "ops/adamw/adamw.h"

#include <bit>

#include "ops/adamw/adamw_testing.h"

namespace hone {
namespace {

using testing::AdamwFormats;
using testing::ExactAdamw;
using testing::host_values;
using testing::random_values;
using testing::values_of;
using Fixture = testing::AdamwFixture;
using Parameter = testing::AdamwParameter;

constexpr AdamwFormats kNarrowMoments{.m = DType::kBF16, .v = DType::kBF16};

/// Five steps of the tensors of a fixture against float64; `slack` is added to the parameter's error bound.
void expect_follows_formula(Fixture& fixture, double slack = 0) {
  const size_t count = fixture.parameters.size();
  std::vector<std::vector<ExactAdamw>> exact(count);
  for (size_t i = 0; i < count; ++i) {
    for (float start : fixture.parameters[i]->start) exact[i].push_back({.p = static_cast<double>(start)});
  }
  for (int t = 1; t <= 5; ++t) {
    std::vector<std::vector<float>> gradients;
    for (size_t i = 0; i < count; ++i) {
      gradients.push_back(random_values(static_cast<int64_t>(exact[i].size()), 100 * i + static_cast<uint64_t>(t)));
      for (size_t j = 0; j < exact[i].size(); ++j) {
        exact[i][j].step(t, static_cast<double>(gradients[i][j]), 1e-2, fixture.args.tensors[i].weight_decay);
      }
    }
    fixture.step(t, gradients);
  }
  for (size_t i = 0; i < count; ++i) {
    const std::vector<float> got = host_values<float>(fixture.args.tensors[i].parameter);
    const std::vector<BFloat16> copy = host_values<BFloat16>(fixture.args.tensors[i].working_copy);
    for (size_t j = 0; j < exact[i].size(); ++j) {
      const double want = exact[i][j].p;
      // Per step the parameter is rounded twice (2^-24 of it), and its change, at most 2 · lr, carries some thirty
      // roundings.
      ASSERT_NEAR(got[j], want, 5 * (2 * 0x1p-24 * std::abs(want) + 2e-2 * 2e-6) + slack) << i << ", " << j;
      ASSERT_EQ(copy[j].bits, BFloat16(got[j]).bits);
    }
  }
}

TEST(Adamw, FollowsTheFormulaOverSeveralSteps) {
  for (int64_t n : {1, 17, 20011}) {
    Fixture fixture;
    fixture.add(n);
    expect_follows_formula(fixture);
  }
}

TEST(Adamw, TakesManyTensorsOfDifferentSizesAndDecays) {
  Fixture fixture;
  for (int64_t i = 0; i < 150; ++i) fixture.add(i % 7 == 0 ? 0 : 1 + 37 * i, i % 2 == 0 ? 0.1 : 0.0);
  expect_follows_formula(fixture);
}

TEST(Adamw, TakesTensorsThatStartAnywhere) {
  Fixture fixture;
  for (int64_t offset : {1, 2, 3}) fixture.add(9001, 0.1, offset);
  expect_follows_formula(fixture);
}

TEST(Adamw, KeepsMomentsInBfloat16) {
  Fixture fixture;
  for (int64_t i = 0; i < 70; ++i) fixture.add(1 + 301 * i, 0.1, i % 3, kNarrowMoments);
  // Before step t each moment carries t - 1 roundings of at most 2^-7 of its largest value, and v's root half of them:
  // Σ_t (t - 1) · 1.5 · 2^-7 of a move of at most 2 · lr.
  expect_follows_formula(fixture, 10 * 1.5 * 0x1p-7 * 2e-2);
}

TEST(Adamw, RoundsMomentsWithoutBias) {
  constexpr int64_t kElements = 50003;
  Fixture fixture;
  fixture.add(kElements, 0.0, 0, kNarrowMoments);
  fixture.add(kElements, 0.0, 0, kNarrowMoments);
  const std::vector<float> gradient(kElements, 1.2345f);
  fixture.step(1, {gradient, gradient});
  const double g = static_cast<double>(0.25f * 1.2345f);
  std::vector<uint16_t> bits;
  for (const auto& [tensor, value] :
       {std::pair{fixture.args.tensors[0].m, 0.1 * g}, std::pair{fixture.args.tensors[0].v, 0.001 * g * g}}) {
    const auto single = static_cast<float>(value);
    const uint32_t upper_half = std::bit_cast<uint32_t>(single) & 0xffff0000u;
    const auto below = std::bit_cast<float>(upper_half), above = std::bit_cast<float>(upper_half + 0x10000u);
    double sum = 0;
    for (BFloat16 rounded : host_values<BFloat16>(tensor.values)) {
      const auto stored = static_cast<float>(rounded);
      ASSERT_TRUE(stored == below || stored == above) << stored;
      sum += static_cast<double>(stored);
      bits.push_back(rounded.bits);
    }
    // A random rounding has a standard deviation of at most half the distance: six of them, over √elements.
    EXPECT_NEAR(sum / kElements, value, 3 * static_cast<double>(above - below) / std::sqrt(kElements));
  }
  const std::vector<BFloat16> other = host_values<BFloat16>(fixture.args.tensors[1].m.values);
  size_t same = 0;
  for (size_t i = 0; i < other.size(); ++i) same += other[i].bits == bits[i];
  EXPECT_LT(same, other.size()) << "another tensor has different random numbers";
}

/// With rounding to nearest, a second moment that grows by a thousandth would stop far below its limit.
TEST(Adamw, SmallChangesOfBfloat16MomentsAddUp) {
  Fixture fixture;
  fixture.add(4096, 0.0, 0, kNarrowMoments);
  const std::vector<float> gradient(4096, 4.0f);  // times the clip coefficient: 1
  for (int t = 1; t <= 700; ++t) fixture.step(t, {gradient});
  double sum = 0;
  for (BFloat16 v : host_values<BFloat16>(fixture.args.tensors[0].v.values))
    sum += static_cast<double>(static_cast<float>(v));
  // Each element is a random walk of 700 roundings of at most 2^-8; the mean of 4096 is within six deviations.
  EXPECT_NEAR(sum / 4096, 1 - std::pow(0.999, 700), 6 * 0x1p-8 * std::sqrt(700.0) / 2 / 64);
}

TEST(Adamw, TheFirstStepMovesByTheLearningRate) {
  Fixture fixture;
  fixture.add(1, 0.0);
  testing::write_values(fixture.args.tensors[0].parameter, {1.0f});
  fixture.step(1, {{-3.0f}});
  EXPECT_NEAR(host_values<float>(fixture.args.tensors[0].parameter)[0], 1.01f, 1e-6);
}

TEST(Adamw, LostNumbersVoidTheStep) {
  Fixture fixture;
  fixture.add(3);
  fixture.step(1, {{std::nanf(""), 1, 1}}, 1);
  EXPECT_EQ(host_values<float>(fixture.args.tensors[0].parameter), fixture.parameters[0]->start);
  EXPECT_EQ(host_values<float>(fixture.args.tensors[0].m.values), std::vector<float>(3, 0.0f));
  EXPECT_EQ(host_values<float>(fixture.args.tensors[0].v.values), std::vector<float>(3, 0.0f));
}

TEST(Adamw, DoesNotDependOnTheNumberOfThreads) {
  std::vector<float> results[2];
  for (int threads : {1, 2}) {
    Fixture fixture(threads);
    fixture.add(30001);
    fixture.step(1, {random_values(30001, 2)});
    results[threads - 1] = host_values<float>(fixture.args.tensors[0].parameter);
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace hone
