#include "ops/momentum/momentum.h"

#include <cmath>

#include "ops/optimizer_testing.h"

namespace hone {
namespace {

using testing::host_values;
using testing::OptimizerFixture;
using testing::random_values;
using testing::StateFormats;
using testing::TestParameter;
using testing::values_of;
using testing::write_values;

struct Fixture : OptimizerFixture {
  using OptimizerFixture::OptimizerFixture;
  MomentumArgs args;

  void add(const Shape& shape, double weight_decay = 0.1, StateFormats formats = {}, bool has_m = true,
           int64_t offset = 0) {
    const TestParameter& p = add_parameter(shape, formats, offset);
    args.tensors.push_back({.parameter = p.parameter,
                            .working_copy = p.working_copy,
                            .m = has_m ? p.m : Tensor{},
                            .gradient = p.gradient,
                            .weight_decay = weight_decay,
                            .stream_id = static_cast<uint32_t>(parameters.size())});
  }
  void step(int t, const std::vector<std::vector<float>>& gradients, int32_t nonfinite = 0) {
    prepare(t, gradients, 0, nonfinite);
    args.scalars = scalars.get();
    momentum(Context(stream, scratch), args);
    stream.synchronize();
  }
};

/// One element in float64, with the fixture's clip coefficient and rate.
struct Exact {
  double p = 0, m = 0;
  double least_direction = 1e9;  // for Lion, whose sign a rounding may change

  void step(double gradient, const MomentumArgs& args, double weight_decay) {
    const double rate = static_cast<double>(OptimizerFixture::kLearningRate);
    double g = gradient * static_cast<double>(OptimizerFixture::kClip);
    if (args.rule == MomentumRule::kLion) {
      const double direction = args.beta1 * m + (1 - args.beta1) * g;
      least_direction = std::min(least_direction, std::abs(direction));
      p = p * (1 - rate * weight_decay) - rate * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
      m = args.beta2 * m + (1 - args.beta2) * g;
      return;
    }
    g += weight_decay * p;
    m = args.beta1 * m + g;
    p -= rate * (args.rule == MomentumRule::kNesterov ? g + args.beta1 * m : m);
  }
};

/// Five steps against float64. `slack`: error of a moment per step, relative to the gradient.
void expect_follows_formula(Fixture& fixture, double slack = 0) {
  constexpr int kSteps = 5;
  std::vector<std::vector<Exact>> exact(fixture.parameters.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    for (float start : fixture.parameters[i]->start) exact[i].push_back({.p = static_cast<double>(start)});
  }
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<std::vector<float>> gradients;
    for (size_t i = 0; i < exact.size(); ++i) {
      gradients.push_back(random_values(static_cast<int64_t>(exact[i].size()), 100 * i + static_cast<uint64_t>(t)));
      for (size_t j = 0; j < exact[i].size(); ++j) {
        exact[i][j].step(static_cast<double>(gradients[i][j]), fixture.args, fixture.args.tensors[i].weight_decay);
      }
    }
    fixture.step(t, gradients);
  }
  const double rate = static_cast<double>(OptimizerFixture::kLearningRate);
  for (size_t i = 0; i < exact.size(); ++i) {
    const std::vector<float> got = values_of(fixture.args.tensors[i].parameter);
    for (size_t j = 0; j < exact[i].size(); ++j) {
      if (exact[i][j].least_direction < 1e-6 + 4 * slack) continue;
      const double want = exact[i][j].p;
      // Per step the parameter is rounded twice (2^-24 of it), and its change, of the size of the rate times a few
      // gradients, carries a dozen roundings.
      ASSERT_NEAR(got[j], want, kSteps * (2 * 0x1p-24 * std::abs(want) + rate * (1e-6 + kSteps * slack)))
          << i << ", " << j;
    }
    if (!fixture.args.tensors[i].working_copy.defined()) continue;
    const std::vector<BFloat16> copy = host_values<BFloat16>(fixture.args.tensors[i].working_copy);
    for (size_t j = 0; j < copy.size(); ++j) ASSERT_EQ(copy[j].bits, BFloat16(got[j]).bits);
  }
}

struct Rule {
  MomentumRule rule;
  double beta1, beta2;
};
constexpr Rule kRules[] = {{MomentumRule::kSgd, 0, 0},
                           {MomentumRule::kSgd, 0.9, 0},
                           {MomentumRule::kNesterov, 0.9, 0},
                           {MomentumRule::kLion, 0.9, 0.99}};

void use(Fixture& fixture, const Rule& rule) {
  fixture.args.rule = rule.rule;
  fixture.args.beta1 = rule.beta1;
  fixture.args.beta2 = rule.beta2;
}

TEST(Momentum, FollowsTheFormulasOverSeveralSteps) {
  for (const Rule& rule : kRules) {
    for (int64_t n : {1, 17, 20011}) {
      Fixture fixture;
      use(fixture, rule);
      fixture.add({n}, 0.1, {}, rule.beta1 > 0);
      expect_follows_formula(fixture);
    }
  }
}

TEST(Momentum, TakesManyTensorsOfDifferentSizesThatStartAnywhere) {
  for (const Rule& rule : kRules) {
    Fixture fixture;
    use(fixture, rule);
    for (int64_t i = 0; i < 150; ++i) {
      fixture.add({i % 7 == 0 ? 0 : 1 + 37 * i}, i % 2 == 0 ? 0.1 : 0.0, {}, rule.beta1 > 0, i % 4);
    }
    expect_follows_formula(fixture);
  }
}

/// A stored moment has a relative error of at most 2^-7; it is a few gradients times the clip coefficient.
TEST(Momentum, KeepsMomentsInBfloat16) {
  for (const Rule& rule : {kRules[1], kRules[2], kRules[3]}) {
    Fixture fixture;
    use(fixture, rule);
    for (int64_t i = 0; i < 70; ++i) fixture.add({1 + 301 * i}, 0.1, {.m = DType::kBF16}, true, i % 3);
    expect_follows_formula(fixture, 0x1p-7 * 4 * 4 * static_cast<double>(OptimizerFixture::kClip));
  }
}

/// A step of a hundredth of the distance of two bfloat16 changes one weight in a hundred.
TEST(Momentum, SmallStepsOfBfloat16WeightsAddUp) {
  for (const Rule& rule : {kRules[0], kRules[3]}) {
    Fixture fixture;
    use(fixture, rule);
    constexpr int64_t kElements = 1 << 16;
    fixture.add({kElements}, 0.0, {.parameter = DType::kBF16, .gradient = DType::kBF16, .m = DType::kBF16},
                rule.beta1 > 0);
    write_values(fixture.args.tensors[0].parameter, std::vector<float>(kElements, 2.0f));
    const float move = rule.rule == MomentumRule::kLion ? 1.0f : OptimizerFixture::kClip;  // in units of the rate
    fixture.learning_rate = 0x1p-7f / 100 / move;
    for (int t = 1; t <= 20; ++t) fixture.step(t, {std::vector<float>(kElements, 1.0f)});
    double sum = 0;
    for (float value : values_of(fixture.args.tensors[0].parameter)) sum += static_cast<double>(value);
    // Below 2 adjacent bfloat16 differ by 2^-7: 20 random roundings of at most half of that per element; six
    // deviations.
    EXPECT_NEAR(sum / kElements, 2.0 - 20 * 0x1p-7 / 100, 6 * 0x1p-8 * std::sqrt(20.0 / kElements));
  }
}

TEST(Momentum, LostNumbersVoidTheStep) {
  for (const Rule& rule : kRules) {
    Fixture fixture;
    use(fixture, rule);
    fixture.add({3}, 0.1, {}, rule.beta1 > 0);
    fixture.step(1, {{std::nanf(""), 1, 1}}, 1);
    EXPECT_EQ(values_of(fixture.args.tensors[0].parameter), fixture.parameters[0]->start);
    if (rule.beta1 > 0) {
      EXPECT_EQ(values_of(fixture.args.tensors[0].m), std::vector<float>(3, 0.0f));
    }
  }
}

TEST(Momentum, LionStandsStillWhereNothingPulls) {
  Fixture fixture;
  use(fixture, kRules[3]);
  fixture.add({5}, 0.0);
  fixture.step(1, {std::vector<float>(5, 0.0f)});
  EXPECT_EQ(values_of(fixture.args.tensors[0].parameter), fixture.parameters[0]->start);
}

TEST(Momentum, DoesNotDependOnTheNumberOfThreads) {
  for (const Rule& rule : kRules) {
    std::vector<float> results[2];
    for (int threads : {1, 2}) {
      Fixture fixture(threads);
      use(fixture, rule);
      fixture.add({30001}, 0.1, {DType::kBF16, DType::kBF16, DType::kBF16}, rule.beta1 > 0);
      for (int t = 1; t <= 3; ++t) fixture.step(t, {random_values(30001, static_cast<uint64_t>(t))});
      results[threads - 1] = values_of(fixture.args.tensors[0].parameter);
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

}  // namespace
}  // namespace hone
