#include "ops/gated_rms_norm/gated_rms_norm.h"

#include <cmath>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

constexpr double kEps = 1e-6;

Values gated(const Values& x, const Values& z, const Values& w) {
  Values y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += w.size()) {
    double squares = 0;
    for (size_t i = 0; i < w.size(); ++i) squares += x[begin + i] * x[begin + i];
    const double r = 1 / std::sqrt(squares / static_cast<double>(w.size()) + kEps);
    for (size_t i = 0; i < w.size(); ++i) {
      const double gate = z[begin + i];
      y[begin + i] = w[i] * x[begin + i] * r * gate / (1 + std::exp(-gate));
    }
  }
  return y;
}

OpCase gated_case(int64_t tokens, int64_t heads, int64_t dim) {
  const Shape shape{tokens, heads * dim};
  return {.inputs = {testing::random_argument(shape, 1), testing::random_argument(shape, 2)},
          .weights = {testing::random_argument({dim}, 3)},
          .op =
              [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
                return std::vector<Var>{gated_rms_norm(tape, in[0], in[1], *w[0], static_cast<float>(kEps))};
              },
          .reference = [](const std::vector<Values>& a) { return std::vector<Values>{gated(a[0], a[1], a[2])}; }};
}

TEST(GatedRmsNorm, MatchesTheReferenceAndItsGradients) {
  // float32: sums of up to 260 squares in 32 or 64 chains, SiLU (2^-22) and a few roundings of 2^-24. bfloat16: x · r,
  // t and y are rounded by 2^-9 each, and so are factors of every gradient.
  for (const auto& [tokens, heads, dim] :
       {std::tuple{1, 1, 2}, {3, 2, 16}, {5, 3, 7}, {2, 1, 128}, {1, 2, 132}, {1, 1, 260}, {0, 2, 8}}) {
    expect_matches_reference(gated_case(tokens, heads, dim), DType::kF32, 4e-6);
    expect_matches_reference(gated_case(tokens, heads, dim), DType::kBF16, 3 * 0x1p-8);
  }
}

/// More rows than one chunk of dw: compares with the formula instead of central differences.
TEST(GatedRmsNorm, AddsUpTheWeightGradientOfManyRows) {
  const OpCase op_case = gated_case(131, 9, 20);
  const testing::OpResult got = run_op(op_case, {});
  const Values &x = op_case.inputs[0].values, &z = op_case.inputs[1].values;
  const Values dy = testing::output_seeds(got.outputs, DType::kF32)[0];
  const Values unit = gated(x, z, Values(20, 1.0));
  Values dw(20), size(20);
  for (size_t i = 0; i < x.size(); ++i) {
    dw[i % 20] += dy[i] * unit[i];
    size[i % 20] += std::abs(dy[i] * unit[i]);
  }
  for (size_t i = 0; i < dw.size(); ++i) EXPECT_NEAR(got.gradients[2][i], dw[i], 4e-6 * size[i]) << i;
}

/// y is rounded where Hugging Face rounds it, bitwise.
TEST(GatedRmsNorm, RoundsBeforeTheWeightAndBeforeTheGate) {
  const OpCase op_case = gated_case(64, 2, 48);
  const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
  const Values x = testing::rounded(op_case.inputs[0].values, DType::kBF16);
  const Values z = testing::rounded(op_case.inputs[1].values, DType::kBF16);
  const Values w = testing::rounded(op_case.weights[0].values, DType::kBF16);
  Values t(x.size());
  for (size_t begin = 0; begin < x.size(); begin += w.size()) {
    double squares = 0;
    for (size_t i = 0; i < w.size(); ++i) squares += x[begin + i] * x[begin + i];
    for (size_t i = 0; i < w.size(); ++i) {
      t[begin + i] = x[begin + i] / std::sqrt(squares / static_cast<double>(w.size()) + kEps);
    }
  }
  t = testing::rounded(t, DType::kBF16);
  for (size_t i = 0; i < t.size(); ++i) t[i] *= w[i % w.size()];
  t = testing::rounded(t, DType::kBF16);
  for (size_t i = 0; i < t.size(); ++i) t[i] *= z[i] / (1 + std::exp(-z[i]));
  t = testing::rounded(t, DType::kBF16);
  size_t different = 0;  // float32 rarely falls on the other side of a tie
  for (size_t i = 0; i < t.size(); ++i) different += got.outputs[0][i] != t[i];
  EXPECT_LE(different, t.size() / 500);
}

TEST(GatedRmsNorm, AFrozenWeightGetsNoGradientAndTheInputsStillDo) {
  OpCase op_case = gated_case(5, 2, 7);
  op_case.weights[0].differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 4e-6);
}

}  // namespace
}  // namespace hone
