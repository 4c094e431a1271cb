#include "ops/muon/muon.h"

#include <cmath>

#include "kernels/cpu/gemm/gemm.h"
#include "ops/optimizer_testing.h"

namespace hone {
namespace {

using testing::OptimizerFixture;
using testing::random_values;
using testing::StateFormats;
using testing::TestParameter;
using testing::values_of;

struct Muon : ::testing::Test {
  void SetUp() override {
    if (testing::test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "Muon is for the CPU in this version";
  }
};

struct Fixture : OptimizerFixture {
  using OptimizerFixture::OptimizerFixture;
  MuonArgs args{.tensors = {}, .weight_decay = 0.1};

  /// A stack [matrices, rows, columns].
  void add(const Shape& shape, StateFormats formats = {}, int64_t offset = 0) {
    const TestParameter& p = add_parameter(shape, formats, offset);
    args.tensors.push_back({.parameter = p.parameter,
                            .working_copy = p.working_copy,
                            .m = p.m,
                            .gradient = p.gradient,
                            .rows = shape[1],
                            .columns = shape[2],
                            .stream_id = static_cast<uint32_t>(parameters.size())});
  }
  void step(int t, const std::vector<std::vector<float>>& gradients, int32_t nonfinite = 0) {
    prepare(t, gradients, 0, nonfinite);
    args.scalars = scalars.get();
    muon(Context(stream, scratch), args);
    stream.synchronize();
  }
  std::vector<float> values(size_t i = 0) const { return values_of(args.tensors[i].parameter); }
};

/// One matrix in float64, where x is never transposed.
struct Exact {
  int64_t rows, columns;
  std::vector<double> p, m;

  std::vector<double> product(const std::vector<double>& a, bool a_transposed, const std::vector<double>& b,
                              bool b_transposed, int64_t n, int64_t inner, int64_t k) const {
    std::vector<double> c(static_cast<size_t>(n * k));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < inner; ++l) {
          sum += a[static_cast<size_t>(a_transposed ? l * n + i : i * inner + l)] *
                 b[static_cast<size_t>(b_transposed ? j * inner + l : l * k + j)];
        }
        c[static_cast<size_t>(i * k + j)] = sum;
      }
    }
    return c;
  }

  void step(const float* gradient, const MuonArgs& args) {
    const double lr = static_cast<double>(OptimizerFixture::kLearningRate) * args.rate_factor;
    std::vector<double> x(p.size());
    double norm = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = static_cast<double>(gradient[i]) * static_cast<double>(OptimizerFixture::kClip);
      m[i] += (g - m[i]) * (1 - args.momentum);
      x[i] = args.nesterov ? g + (m[i] - g) * args.momentum : m[i];
      norm += x[i] * x[i];
    }
    for (double& value : x) value /= std::max(std::sqrt(norm), args.eps);
    for (int i = 0; i < args.steps; ++i) {
      const std::vector<double> gram = product(x, false, x, true, rows, columns, rows);
      std::vector<double> poly = product(gram, false, gram, false, rows, rows, rows);
      for (size_t j = 0; j < poly.size(); ++j) poly[j] = 2.0315 * poly[j] - 4.7750 * gram[j];
      const std::vector<double> moved = product(poly, false, x, false, rows, rows, columns);
      for (size_t j = 0; j < x.size(); ++j) x[j] = 3.4445 * x[j] + moved[j];
    }
    const auto n = static_cast<double>(rows), k = static_cast<double>(columns);
    const double rate =
        args.rate == MuonRate::kOriginal ? std::sqrt(std::max(1.0, n / k)) : 0.2 * std::sqrt(std::max(n, k));
    for (size_t i = 0; i < p.size(); ++i) p[i] = p[i] * (1 - lr * args.weight_decay) - lr * rate * x[i];
  }
};

constexpr int kSteps = 3;
/// Growth of an error of x in all iterations: the polynomial's slope at zero in each.
const double kGrowth = std::pow(3.4445, 5);

/// Compares steps with float64. `slack`: error of x in addition to float32's roundings, before it grows.
void expect_follows_formula(Fixture& fixture, double slack = 0) {
  std::vector<std::vector<Exact>> exact(fixture.parameters.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    const MuonTensor& tensor = fixture.args.tensors[i];
    const std::vector<float>& start = fixture.parameters[i]->start;
    const auto numel = tensor.rows * tensor.columns;
    for (auto at = start.begin(); at != start.end(); at += numel) {
      exact[i].push_back(
          {tensor.rows, tensor.columns, {at, at + numel}, std::vector<double>(static_cast<size_t>(numel))});
    }
  }
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<std::vector<float>> gradients;
    for (size_t i = 0; i < exact.size(); ++i) {
      const int64_t n = fixture.args.tensors[i].parameter.numel();
      gradients.push_back(random_values(n, 100 * i + static_cast<uint64_t>(t)));
      const float* gradient = gradients.back().data();
      for (Exact& matrix : exact[i]) {
        matrix.step(gradient, fixture.args);
        gradient += matrix.rows * matrix.columns;
      }
    }
    fixture.step(t, gradients);
  }
  const double lr = static_cast<double>(OptimizerFixture::kLearningRate);
  for (size_t i = 0; i < exact.size(); ++i) {
    const std::vector<float> got = fixture.values(i);
    size_t at = 0;
    for (const Exact& matrix : exact[i]) {
      const double rate = lr * std::sqrt(static_cast<double>(std::max(matrix.rows, matrix.columns)));
      for (const double want : matrix.p) {
        // Per step the parameter is rounded twice, and x, of less than 1, several times before it grows.
        ASSERT_NEAR(got[at], want,
                    kSteps * (2 * 0x1p-24 * std::max(1.0, std::abs(want)) + rate * kGrowth * (4 * 0x1p-24 + slack)))
            << i << ", " << at;
        ++at;
      }
    }
  }
}

TEST_F(Muon, FollowsTheFormulaForAllShapes) {
  for (const MuonRate rate : {MuonRate::kOriginal, MuonRate::kMatchRmsAdamw}) {
    for (const bool nesterov : {true, false}) {
      Fixture fixture;
      fixture.args.rate = rate;
      fixture.args.nesterov = nesterov;
      fixture.add({1, 33, 9});
      fixture.add({1, 9, 33});
      fixture.add({1, 16, 16});
      fixture.add({1, 1, 40});
      fixture.add({1, 40, 1});
      fixture.add({5, 7, 3}, {}, 1);
      fixture.add({3, 48, 32});
      expect_follows_formula(fixture);
    }
  }
}

/// bfloat16 moments, and therefore x, have a relative error of at most 2^-7; elements of x are far less than 1.
TEST_F(Muon, KeepsMomentsInBfloat16) {
  Fixture fixture;
  fixture.add({4, 24, 12}, {.m = DType::kBF16});
  fixture.add({1, 5, 7}, {.m = DType::kBF16}, 1);
  expect_follows_formula(fixture, 0x1p-7 / 12);
}

/// If operands may be rounded, x has a relative error of 2^-8 on a CPU that does so.
TEST_F(Muon, MayRoundOperands) {
  Fixture fixture;
  fixture.add({2, 64, 96});
  fixture.args.tensors[0].may_round = true;
  expect_follows_formula(fixture, gemm_rounds() ? 0x1p-8 / 64 : 0);
}

TEST_F(Muon, StepsEveryMatrixAsIfItWereAlone) {
  // 9 x 8 x 60000 elements exceed a batch, and matrices of 3 x 5 do not start at multiples of 4.
  for (const Shape& shape : {Shape{9, 8, 60000}, Shape{512, 3, 5}}) {
    const int64_t part = shape[0] == 9 ? 4 : 256, numel = shape[1] * shape[2];
    const StateFormats formats{DType::kBF16, DType::kF32, DType::kBF16};
    const std::vector<float> gradient = random_values(shape.numel(), 5);
    std::vector<float> whole;
    {
      Fixture fixture;
      fixture.scratch.reserve(size_t{128} << 20);
      fixture.add(shape, formats);
      fixture.step(1, {gradient});
      whole = fixture.values();
    }
    Fixture fixture;
    fixture.scratch.reserve(size_t{128} << 20);
    fixture.add(shape, formats);
    MuonTensor first = fixture.args.tensors[0], rest = first;
    for (Tensor MuonTensor::*field : {&MuonTensor::parameter, &MuonTensor::m, &MuonTensor::gradient}) {
      const Tensor all = first.*field;
      const int64_t count = part * numel;
      first.*field = {all.data, all.dtype, {count}, all.device};
      rest.*field = {
          all.data + static_cast<size_t>(count) * size_of(all.dtype), all.dtype, {all.numel() - count}, all.device};
    }
    rest.first_element = part * numel;
    ASSERT_EQ(rest.first_element % 256, 0);
    const Tensor parameter = fixture.args.tensors[0].parameter;
    fixture.args.tensors = {first, rest};
    fixture.step(1, {gradient});
    EXPECT_EQ(values_of(parameter), whole);
  }
}

TEST_F(Muon, DoesNotDependOnTheNumberOfThreads) {
  std::vector<float> results[2];
  for (const int threads : {1, 2}) {
    Fixture fixture(threads);
    fixture.add({3, 130, 70}, {DType::kBF16, DType::kBF16, DType::kBF16});
    for (int t = 1; t <= 3; ++t) fixture.step(t, {random_values(3 * 130 * 70, static_cast<uint64_t>(t))});
    results[threads - 1] = fixture.values();
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(Muon, LostNumbersVoidTheStep) {
  Fixture fixture;
  fixture.add({1, 3, 2});
  fixture.step(1, {{std::nanf(""), 1, 1, 1, 1, 1}}, 1);
  EXPECT_EQ(fixture.values(), fixture.parameters[0]->start);
  EXPECT_EQ(values_of(fixture.args.tensors[0].m), std::vector<float>(6, 0.0f));
}

TEST_F(Muon, OnlyDecaysWhereNothingPulls) {
  Fixture fixture;
  fixture.args.weight_decay = 0;
  fixture.add({1, 3, 2});
  fixture.step(1, {std::vector<float>(6, 0.0f)});
  EXPECT_EQ(fixture.values(), fixture.parameters[0]->start);
}

}  // namespace
}  // namespace hone
