#include "ops/rms_norm/rms_norm.h"

#include <cmath>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

constexpr double kEps = 1e-5;

Values norm_of(const Values& x, const Values& w) {
  const size_t hidden = w.size();
  Values y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += hidden) {
    double squares = 0;
    for (size_t i = 0; i < hidden; ++i) squares += x[begin + i] * x[begin + i];
    const double r = 1 / std::sqrt(squares / static_cast<double>(hidden) + kEps);
    for (size_t i = 0; i < hidden; ++i) y[begin + i] = x[begin + i] * r * w[i];
  }
  return y;
}

OpCase norm_case(int64_t rows, int64_t hidden) {
  return {.inputs = {testing::random_argument({rows, hidden}, 1)},
          .weights = {testing::random_argument({hidden}, 2)},
          .op =
              [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
                return std::vector<Var>{rms_norm(tape, in[0], *w[0], static_cast<float>(kEps))};
              },
          .reference = [](const std::vector<Values>& a) { return std::vector<Values>{norm_of(a[0], a[1])}; }};
}

/// Two layers of residual stream, so that sum has its own gradient.
OpCase residual_case(int64_t rows, int64_t hidden, float scale = 1.0f) {
  return {.inputs = {testing::random_argument({rows, hidden}, 1), testing::random_argument({rows, hidden}, 2)},
          .weights = {testing::random_argument({hidden}, 3)},
          .op =
              [scale](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
                const auto eps = static_cast<float>(kEps);
                const SumAndNorm first = add_rms_norm(tape, in[0], in[1], *w[0], eps, NormWeighting::kPlain, scale);
                const SumAndNorm second =
                    add_rms_norm(tape, first.sum, first.y, *w[0], eps, NormWeighting::kPlain, scale);
                return std::vector<Var>{second.sum, second.y};
              },
          .reference =
              [m = static_cast<double>(scale)](const std::vector<Values>& a) {
                Values sum(a[0].size());
                for (size_t i = 0; i < sum.size(); ++i) sum[i] = a[0][i] + m * a[1][i];
                const Values y = norm_of(sum, a[2]);
                for (size_t i = 0; i < sum.size(); ++i) sum[i] += m * y[i];
                return std::vector<Values>{sum, norm_of(sum, a[2])};
              }};
}

TEST(RmsNorm, MatchesTheReferenceAndItsGradients) {
  // float32: a sum of up to 1031 squares or products in 64 chains of 17, then elementwise work: some 30 roundings of
  // 2^-24. bfloat16: x · r and the product are rounded, 2^-8 each; dw sums terms with the first rounding.
  for (const auto& [rows, hidden] : {std::pair{3, 2}, {1, 17}, {131, 7}, {2, 1031}, {75, 8}, {9, 264}, {0, 8}}) {
    expect_matches_reference(norm_case(rows, hidden), DType::kF32, 4e-6);
    expect_matches_reference(norm_case(rows, hidden), DType::kBF16, 0x1p-7);
  }
}

/// Runs of a row, without a weight; used twice, so that gradients are added.
TEST(RmsNorm, OfRunsWithoutAWeightMatchesTheReference) {
  for (const auto& [rows, runs, width] : {std::tuple{3, 1, 7}, {5, 4, 16}, {2, 3, 24}, {70, 2, 8}, {2, 2, 264}}) {
    const OpCase op_case{
        .inputs = {testing::random_argument({rows, runs * width}, 1)},
        .weights = {},
        .op =
            [width = width](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
              const auto eps = static_cast<float>(kEps);
              return std::vector<Var>{rms_norm(tape, in[0], width, eps), rms_norm(tape, in[0], width, eps)};
            },
        .reference =
            [width = width](const std::vector<Values>& a) {
              const Values y = norm_of(a[0], Values(static_cast<size_t>(width), 1.0));
              return std::vector<Values>{y, y};
            }};
    expect_matches_reference(op_case, DType::kF32, 4e-6);
    expect_matches_reference(op_case, DType::kBF16, 0x1p-7);  // one rounding of y, two of the sum of gradients
  }
}

/// Rows wider than central differences can afford: compares with the gradients' formulas in float64.
TEST(RmsNorm, WideRowsMatchTheFormulas) {
  constexpr int64_t kRows = 70;
  for (const int64_t hidden : {2048, 5000, 8200, 33000}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(::testing::Message() << hidden << " " << name_of(dtype));
      const OpCase op_case = norm_case(kRows, hidden);
      const testing::OpResult got = run_op(op_case, {.dtype = dtype});
      const Values x = testing::rounded(op_case.inputs[0].values, dtype);
      const Values w = testing::rounded(op_case.weights[0].values, dtype);
      const Values dy = testing::output_seeds(got.outputs, dtype)[0];
      const Values y = norm_of(x, w);
      Values dx(x.size()), dw(w.size());
      for (size_t begin = 0; begin < x.size(); begin += w.size()) {
        double squares = 0, projection = 0;
        for (size_t i = 0; i < w.size(); ++i) {
          squares += x[begin + i] * x[begin + i];
          projection += x[begin + i] * dy[begin + i] * w[i];
        }
        const double r = 1 / std::sqrt(squares / static_cast<double>(hidden) + kEps);
        for (size_t i = 0; i < w.size(); ++i) {
          const double n = x[begin + i] * r;
          dx[begin + i] = r * (dy[begin + i] * w[i] - n * projection * r / static_cast<double>(hidden));
          dw[i] += dy[begin + i] * n;
        }
      }
      // As above, now with a bound per element: y has its own two roundings, dx one and those of the float32 sums, and
      // dw the roundings of its 70 terms, each of which is at most 5 · 5 in size.
      const double unit = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24;
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(got.outputs[0][i], y[i], (2.01 * unit + 4e-6) * std::abs(y[i])) << i;
        ASSERT_NEAR(got.gradients[0][i], dx[i], (1.01 * unit + 4e-6) * std::abs(dx[i]) + 4e-6) << i;
      }
      for (size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(got.gradients[1][i], dw[i], 70 * 25 * (unit + 0x1p-20)) << i;
    }
  }
}

/// With one feature y is ±w, and dx is the remainder, due to eps, of two terms of size |dy · w| · r, here up to 3,
/// which cancel: their four roundings of 2^-24 are 7e-7, and the tolerance is relative to 1e-3.
TEST(RmsNorm, OfOneFeatureIsItsSign) {
  for (const int64_t rows : {1, 3}) expect_matches_reference(norm_case(rows, 1), DType::kF32, 7e-4);
}

TEST(RmsNorm, FusedWithTheResidualSumMatchesTheReference) {
  for (const auto& [rows, hidden] : {std::pair{1, 3}, {5, 13}, {67, 5}, {5, 72}}) {
    for (const float scale : {1.0f, 0.22f}) {
      const OpCase op_case = residual_case(rows, hidden, scale);
      expect_matches_reference(op_case, DType::kF32, 4e-6);
      // Forward has seven consecutive roundings of 2^-8 (sum, x · r, product, twice, sum) and so has backward, where a
      // row with small entries could amplify them by |w| r; they partly cancel.
      expect_matches_reference(op_case, DType::kBF16, 8 * 0x1p-8);
    }
  }
}

/// y is bitwise round(w · round(x · r)), the order of Hugging Face's norms.
TEST(RmsNorm, RoundsBeforeTheWeight) {
  const OpCase op_case = norm_case(64, 48);
  const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
  const Values x = testing::rounded(op_case.inputs[0].values, DType::kBF16);
  const Values w = testing::rounded(op_case.weights[0].values, DType::kBF16);
  Values y = testing::rounded(norm_of(x, Values(w.size(), 1.0)), DType::kBF16);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= w[i % w.size()];
  y = testing::rounded(y, DType::kBF16);
  size_t different = 0;  // float32 statistics rarely fall on the other side of a tie
  for (size_t i = 0; i < y.size(); ++i) different += got.outputs[0][i] != y[i];
  EXPECT_LE(different, y.size() / 1000);
}

/// kFromOne: the plain norm with 1 + w.
TEST(RmsNorm, AWeightThatCountsFromOneMatchesTheReference) {
  for (const auto& [rows, hidden] : {std::pair{3, 2}, {131, 7}, {2, 1031}, {9, 264}}) {
    OpCase op_case = residual_case(rows, hidden);
    op_case.op = [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
      const auto eps = static_cast<float>(kEps);
      const SumAndNorm sum = add_rms_norm(tape, in[0], in[1], *w[0], eps, NormWeighting::kFromOne);
      return std::vector<Var>{sum.sum, rms_norm(tape, sum.y, *w[0], eps, NormWeighting::kFromOne)};
    };
    op_case.reference = [](const std::vector<Values>& a) {
      Values sum(a[0].size()), w = a[2];
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = a[0][i] + a[1][i];
      for (double& value : w) value += 1;
      return std::vector<Values>{sum, norm_of(norm_of(sum, w), w)};
    };
    // As above, for two consecutive norms; bfloat16 rounds sum, y and y of the second norm.
    expect_matches_reference(op_case, DType::kF32, 1e-5);
    expect_matches_reference(op_case, DType::kBF16, 4 * 0x1p-8);
  }
}

/// y is bitwise round((1 + w) · x · r), or round(w · x · r), without earlier roundings.
TEST(RmsNorm, RoundsOnceWhereTheWeightingSaysSo) {
  for (const NormWeighting weighting : {NormWeighting::kFromOne, NormWeighting::kOnce}) {
    OpCase op_case = norm_case(64, 48);
    op_case.op = [weighting](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
      return std::vector<Var>{rms_norm(tape, in[0], *w[0], static_cast<float>(kEps), weighting)};
    };
    const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
    Values w = testing::rounded(op_case.weights[0].values, DType::kBF16);
    for (double& value : w) value += weighting == NormWeighting::kFromOne ? 1 : 0;
    const Values x = testing::rounded(op_case.inputs[0].values, DType::kBF16);
    const Values y = testing::rounded(norm_of(x, w), DType::kBF16);
    size_t different = 0;  // float32 statistics rarely fall on the other side of a tie
    for (size_t i = 0; i < y.size(); ++i) different += got.outputs[0][i] != y[i];
    EXPECT_LE(different, y.size() / 1000);
  }
}

TEST(RmsNorm, TakesAFloat32WeightBesideBfloat16Activations) {
  OpCase op_case = norm_case(5, 7);
  const testing::OpResult want = run_op(op_case, {.dtype = DType::kBF16});
  testing::Argument weight = op_case.weights[0];
  weight.values = testing::rounded(weight.values, DType::kBF16);
  const auto wide = std::make_shared<testing::TestWeight>(weight, DType::kF32);
  op_case.op = [wide](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
    return std::vector<Var>{rms_norm(tape, in[0], *wide, static_cast<float>(kEps))};
  };
  op_case.weights.clear();
  const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
  EXPECT_EQ(got.outputs, want.outputs);
  EXPECT_EQ(got.gradients[0], want.gradients[0]);
}

TEST(RmsNorm, AFrozenWeightGetsNoGradientAndTheInputStillDoes) {
  OpCase op_case = norm_case(5, 7);
  op_case.weights[0].differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 4e-6);
}

}  // namespace
}  // namespace hone
