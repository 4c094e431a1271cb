#include "ops/gated_group_norm/gated_group_norm.h"

#include <cmath>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

constexpr double kEps = 1e-6;

Values normalised(const Values& x, const Values& z, const Values& w, int64_t groups) {
  const size_t dim = w.size() / static_cast<size_t>(groups);
  Values y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += dim) {
    double squares = 0;
    for (size_t i = begin; i < begin + dim; ++i) {
      y[i] = x[i] * z[i] / (1 + std::exp(-z[i]));
      squares += y[i] * y[i];
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(dim) + kEps);
    for (size_t i = begin; i < begin + dim; ++i) y[i] *= r * w[i % w.size()];
  }
  return y;
}

OpCase norm_case(int64_t tokens, int64_t groups, int64_t dim) {
  const Shape shape{tokens, groups * dim};
  return {
      .inputs = {testing::random_argument(shape, 1), testing::random_argument(shape, 2)},
      .weights = {testing::random_argument({groups * dim}, 3)},
      .op =
          [groups](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
            return std::vector<Var>{gated_group_norm(tape, in[0], in[1], *w[0], groups, static_cast<float>(kEps))};
          },
      .reference =
          [groups](const std::vector<Values>& a) { return std::vector<Values>{normalised(a[0], a[1], a[2], groups)}; }};
}

TEST(GatedGroupNorm, MatchesTheReferenceAndItsGradients) {
  // float32: sums of up to 260 squares in several chains, SiLU (2^-22) and a few roundings of 2^-24. bfloat16: h · r
  // and y are rounded by 2^-9 each, and so are factors of every gradient.
  for (const auto& [tokens, groups, dim] :
       {std::tuple{1, 1, 2}, {3, 2, 16}, {5, 3, 7}, {2, 1, 128}, {1, 2, 132}, {1, 1, 260}, {0, 2, 8}}) {
    expect_matches_reference(norm_case(tokens, groups, dim), DType::kF32, 4e-6);
    expect_matches_reference(norm_case(tokens, groups, dim), DType::kBF16, 3 * 0x1p-8);
  }
}

/// Groups of several blocks of float32 values, and more rows than one chunk of dw: compares with the formula instead of
/// central differences.
TEST(GatedGroupNorm, ServesWideGroupsAndManyRows) {
  for (const auto& [tokens, groups, dim] : {std::tuple{131, 3, 20}, {5, 2, 1500}, {3, 1, 8192}}) {
    SCOPED_TRACE(dim);
    const OpCase op_case = norm_case(tokens, groups, dim);
    const testing::OpResult got = run_op(op_case, {});
    const Values &x = op_case.inputs[0].values, &z = op_case.inputs[1].values, &w = op_case.weights[0].values;
    const Values want = normalised(x, z, w, groups);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.outputs[0][i], want[i], 4e-6 * (1 + std::abs(want[i])));
    const Values dy = testing::output_seeds(got.outputs, DType::kF32)[0];
    const Values unit = normalised(x, z, Values(w.size(), 1.0), groups);
    Values dw(w.size()), size(w.size());
    for (size_t i = 0; i < x.size(); ++i) {
      dw[i % w.size()] += dy[i] * unit[i];
      size[i % w.size()] += std::abs(dy[i] * unit[i]);
    }
    for (size_t i = 0; i < dw.size(); ++i) ASSERT_NEAR(got.gradients[2][i], dw[i], 4e-6 * size[i]) << i;
    const auto row = static_cast<size_t>(dim);
    for (size_t begin = 0; begin < x.size(); begin += row) {
      double squares = 0, along = 0;
      Values h(row), g(row);
      for (size_t i = 0; i < row; ++i) {
        h[i] = x[begin + i] * z[begin + i] / (1 + std::exp(-z[begin + i]));
        g[i] = dy[begin + i] * w[(begin + i) % w.size()];
        squares += h[i] * h[i];
        along += g[i] * h[i];
      }
      const double r2 = 1 / (squares / static_cast<double>(dim) + kEps), mean = r2 * along / static_cast<double>(dim);
      for (size_t i = 0; i < row; ++i) {
        const double gate = z[begin + i], s = 1 / (1 + std::exp(-gate)), dh = std::sqrt(r2) * (g[i] - h[i] * mean);
        ASSERT_NEAR(got.gradients[0][begin + i], dh * gate * s, 1e-5) << i;
        ASSERT_NEAR(got.gradients[1][begin + i], dh * x[begin + i] * s * (1 + gate * (1 - s)), 1e-5) << i;
      }
    }
  }
}

TEST(GatedGroupNorm, AFrozenWeightGetsNoGradientAndTheInputsStillDo) {
  OpCase op_case = norm_case(5, 2, 7);
  op_case.weights[0].differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 4e-6);
}

}  // namespace
}  // namespace hone
