#include "ops/adafactor/adafactor.h"

#include <cmath>
#include <numeric>

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
  AdafactorArgs args;

  void add(const Shape& shape, double weight_decay = 0.1, StateFormats formats = {}, int64_t offset = 0) {
    const TestParameter& p = add_parameter(shape, formats, offset);
    args.tensors.push_back({.parameter = p.parameter,
                            .working_copy = p.working_copy,
                            .rows = p.rows,
                            .columns = p.columns,
                            .v = p.v,
                            .m = args.beta1 > 0 ? p.m : Tensor{},
                            .gradient = p.gradient,
                            .weight_decay = weight_decay,
                            .stream_id = static_cast<uint32_t>(parameters.size())});
  }
  void step(int t, const std::vector<std::vector<float>>& gradients, int32_t nonfinite = 0) {
    prepare(t, gradients, std::pow(t, -0.8), nonfinite);
    args.scalars = scalars.get();
    adafactor(Context(stream, scratch), args);
    stream.synchronize();
  }
};

/// A parameter in float64, by the formulas of the paper on whole matrices.
struct Exact {
  std::vector<double> p, m, v, rows, columns;
  int64_t matrices = 1, height = 1, width = 1;
  bool factored = false;

  Exact(const std::vector<float>& start, const Shape& shape) : p(start.begin(), start.end()), m(p.size()), v(p.size()) {
    factored = shape.rank() >= 2;
    if (!factored) return;
    height = shape[shape.rank() - 2];
    width = shape[shape.rank() - 1];
    matrices = static_cast<int64_t>(p.size()) / (height * width);
    rows.resize(static_cast<size_t>(matrices * height));
    columns.resize(static_cast<size_t>(matrices * width));
  }

  static double rms(const std::vector<double>& x) {
    return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size()));
  }

  /// Updates the second moments; returns 1 / sqrt of them.
  std::vector<double> scales(const std::vector<double>& squares, double fresh) {
    std::vector<double> result(squares.size());
    if (!factored) {
      for (size_t i = 0; i < v.size(); ++i) {
        v[i] = (1 - fresh) * v[i] + fresh * squares[i];
        result[i] = 1 / std::sqrt(v[i]);
      }
      return result;
    }
    const auto h = static_cast<size_t>(height), w = static_cast<size_t>(width);
    for (size_t b = 0; b < static_cast<size_t>(matrices); ++b) {
      std::vector<double> of_rows(h), of_columns(w);
      for (size_t r = 0; r < h; ++r) {
        for (size_t c = 0; c < w; ++c) {
          of_rows[r] += squares[(b * h + r) * w + c] / static_cast<double>(w);
          of_columns[c] += squares[(b * h + r) * w + c] / static_cast<double>(h);
        }
      }
      double mean = 0;
      for (size_t r = 0; r < h; ++r) {
        rows[b * h + r] = (1 - fresh) * rows[b * h + r] + fresh * of_rows[r];
        mean += rows[b * h + r] / static_cast<double>(h);
      }
      for (size_t c = 0; c < w; ++c) columns[b * w + c] = (1 - fresh) * columns[b * w + c] + fresh * of_columns[c];
      for (size_t r = 0; r < h; ++r) {
        for (size_t c = 0; c < w; ++c)
          result[(b * h + r) * w + c] = 1 / std::sqrt(rows[b * h + r] / mean * columns[b * w + c]);
      }
    }
    return result;
  }

  void step(int t, const std::vector<float>& gradient, const AdafactorArgs& args, double weight_decay) {
    std::vector<double> g, squares;
    for (float value : gradient) {
      g.push_back(static_cast<double>(value) * static_cast<double>(OptimizerFixture::kClip));
      squares.push_back(g.back() * g.back() + args.eps1);
    }
    double rate = static_cast<double>(OptimizerFixture::kLearningRate);
    if (args.scale_parameter) rate *= std::max(args.eps2, rms(p));
    std::vector<double> u = scales(squares, std::pow(t, -0.8));
    for (size_t i = 0; i < u.size(); ++i) u[i] *= g[i];
    const double factor = rate / std::max(1.0, rms(u) / args.clip_threshold);
    for (size_t i = 0; i < u.size(); ++i) {
      u[i] *= factor;
      if (args.beta1 > 0) u[i] = m[i] = args.beta1 * m[i] + (1 - args.beta1) * u[i];
      p[i] = p[i] * (1 - rate * weight_decay) - u[i];
    }
  }
};

/// Four steps against float64. `slack`: error that a moment may add per step, in learning rates.
void expect_follows_formula(Fixture& fixture, double slack = 0) {
  constexpr int kSteps = 4;
  std::vector<Exact> exact;
  for (const auto& parameter : fixture.parameters) exact.emplace_back(parameter->start, parameter->parameter.shape);
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<std::vector<float>> gradients;
    for (size_t i = 0; i < exact.size(); ++i) {
      gradients.push_back(random_values(static_cast<int64_t>(exact[i].p.size()), 100 * i + static_cast<uint64_t>(t)));
      if (!gradients.back().empty())
        exact[i].step(t, gradients.back(), fixture.args, fixture.args.tensors[i].weight_decay);
    }
    fixture.step(t, gradients);
  }
  const double rate = static_cast<double>(OptimizerFixture::kLearningRate);
  for (size_t i = 0; i < exact.size(); ++i) {
    const std::vector<float> got = values_of(fixture.args.tensors[i].parameter);
    for (size_t j = 0; j < got.size(); ++j) {
      const double want = exact[i].p[j];
      // Per step the parameter is rounded twice (2^-24 of it), and its change, of a few learning rates (a gradient of
      // four standard deviations with a moment of one), carries some thirty roundings of factors and sums.
      ASSERT_NEAR(got[j], want, kSteps * (2 * 0x1p-24 * std::abs(want) + rate * (1e-5 + kSteps * slack)))
          << i << ", " << j;
    }
    if (!fixture.args.tensors[i].working_copy.defined()) continue;
    const std::vector<BFloat16> copy = host_values<BFloat16>(fixture.args.tensors[i].working_copy);
    for (size_t j = 0; j < copy.size(); ++j) ASSERT_EQ(copy[j].bits, BFloat16(got[j]).bits);
  }
}

/// Every option alone and all together.
const AdafactorArgs kOptions[] = {
    {.tensors = {}},
    {.tensors = {}, .clip_threshold = 0.5},
    {.tensors = {}, .beta1 = 0.9},
    {.tensors = {}, .scale_parameter = true},
    {.tensors = {}, .eps2 = 10, .clip_threshold = 0.75, .beta1 = 0.5, .scale_parameter = true},
};

TEST(Adafactor, FollowsTheFormulasOverSeveralSteps) {
  const Shape shapes[] = {{1},      {17},       {4099},    {1, 1},       {1, 300},   {300, 1},
                          {64, 64}, {131, 257}, {3, 5, 7}, {2, 70, 130}, {5, 1, 33}, {2, 2, 65, 12}};
  for (const AdafactorArgs& options : kOptions) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(::testing::Message() << shape.to_string());
      Fixture fixture;
      fixture.args = options;
      fixture.add(shape);
      expect_follows_formula(fixture);
    }
  }
}

TEST(Adafactor, TakesManyTensorsOfDifferentSizesThatStartAnywhere) {
  Fixture fixture;
  fixture.args.beta1 = 0.9;
  for (int64_t i = 0; i < 60; ++i) {
    const Shape shape = i % 3 == 0   ? Shape{i % 7 == 0 ? 0 : 1 + 37 * i}
                        : i % 3 == 1 ? Shape{1 + i, 3 + 2 * i}
                                     : Shape{i % 8 == 0 ? 0 : i % 5, 1 + i, 4 * i};
    fixture.add(shape, i % 2 == 0 ? 0.1 : 0.0, {}, i % 4);
  }
  expect_follows_formula(fixture);
}

/// More column sums than fit in one launch.
TEST(Adafactor, GroupsOfTensorsDoNotDisturbEachOther) {
  Fixture fixture;
  fixture.add({1100, 333}, 0.1);
  for (int64_t i = 0; i < 30; ++i) fixture.add({65 + i, 100}, 0.1);
  expect_follows_formula(fixture);
}

/// m is a mean of updates of at most a few learning rates, stored with a relative error of 2^-7.
TEST(Adafactor, KeepsTheFirstMomentInBfloat16) {
  Fixture fixture;
  fixture.args.beta1 = 0.9;
  for (int64_t i = 0; i < 20; ++i) fixture.add({1 + 7 * i, 13 + i}, 0.1, {.m = DType::kBF16});
  expect_follows_formula(fixture, 0x1p-7 * 4);
}

/// Gradients of one sign move every weight by the learning rate; less than half the distance of two bfloat16.
TEST(Adafactor, SmallStepsOfBfloat16WeightsAddUp) {
  Fixture fixture;
  constexpr int64_t kRows = 256, kColumns = 257;
  const StateFormats narrow{.parameter = DType::kBF16, .gradient = DType::kBF16};
  fixture.add({kRows, kColumns}, 0.0, narrow);
  write_values(fixture.args.tensors[0].parameter, std::vector<float>(kRows * kColumns, 2.0f));
  fixture.learning_rate = 0x1p-7f / 100;
  for (int t = 1; t <= 20; ++t) fixture.step(t, {std::vector<float>(kRows * kColumns, 1.0f)});
  double sum = 0;
  for (float value : values_of(fixture.args.tensors[0].parameter)) sum += static_cast<double>(value);
  const double count = kRows * kColumns;
  // Below 2 adjacent bfloat16 differ by 2^-7: 20 random roundings of at most half of that per element; six deviations.
  EXPECT_NEAR(sum / count, 2.0 - 20 * 0x1p-7 / 100, 6 * 0x1p-8 * std::sqrt(20.0 / count));
}

TEST(Adafactor, ZeroGradientsChangeNothingButTheDecay) {
  Fixture fixture;
  fixture.add({5, 7}, 0.0);
  fixture.add({9}, 0.0);
  fixture.step(1, {std::vector<float>(35, 0.0f), std::vector<float>(9, 0.0f)});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(values_of(fixture.args.tensors[i].parameter), fixture.parameters[i]->start);
  }
}

TEST(Adafactor, LostNumbersVoidTheStep) {
  Fixture fixture;
  fixture.args.beta1 = 0.9;
  fixture.add({2, 3});
  fixture.add({3});
  fixture.step(1, {{std::nanf(""), 1, 1, 1, 1, 1}, {1, 1, 1}}, 1);
  for (size_t i = 0; i < 2; ++i) {
    const AdafactorTensor& tensor = fixture.args.tensors[i];
    EXPECT_EQ(values_of(tensor.parameter), fixture.parameters[i]->start);
    for (const Tensor& state : {tensor.m, tensor.rows, tensor.columns, tensor.v}) {
      if (!state.defined()) continue;
      for (float value : values_of(state)) EXPECT_EQ(value, 0.0f);
    }
  }
}

TEST(Adafactor, DoesNotDependOnTheNumberOfThreads) {
  std::vector<float> results[2];
  for (int threads : {1, 2}) {
    Fixture fixture(threads);
    fixture.args.beta1 = 0.9;
    fixture.args.scale_parameter = true;
    fixture.add({3, 101, 99}, 0.1, {DType::kBF16, DType::kBF16, DType::kBF16});
    for (int t = 1; t <= 3; ++t) fixture.step(t, {random_values(3 * 101 * 99, static_cast<uint64_t>(t))});
    results[threads - 1] = values_of(fixture.args.tensors[0].parameter);
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace hone
