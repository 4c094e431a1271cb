#include "ops/dora/dora.h"

#include <cmath>
#include <memory>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

constexpr float kScaling = 0.5f;

struct Sizes {
  int64_t tokens, in, out, rank;
  bool bias = false;
};

/// The norms of W + scaling · B A.
Values norms_of(const Values& w, const Values& a, const Values& b, const Sizes& sizes) {
  const auto in = static_cast<size_t>(sizes.in), out = static_cast<size_t>(sizes.out),
             r = static_cast<size_t>(sizes.rank);
  Values norms(out);
  for (size_t o = 0; o < out; ++o) {
    for (size_t i = 0; i < in; ++i) {
      double value = w[o * in + i];
      for (size_t rho = 0; rho < r; ++rho) value += double{kScaling} * b[o * r + rho] * a[rho * in + i];
      norms[o] += value * value;
    }
    norms[o] = std::sqrt(norms[o]);
  }
  return norms;
}

/// Weights: w, A, B, magnitude, then bias if there is one. The reference's norms are those of the case's own values
/// whatever is changed to take differences: backward takes them for constants.
OpCase dora_case(const Sizes& sizes, DType dtype) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(sizes.in));
  OpCase result;
  result.inputs = {testing::random_argument({sizes.tokens, sizes.in}, 1)};
  result.weights = {testing::random_argument({sizes.out, sizes.in}, 2, scale, false),
                    testing::random_argument({sizes.rank, sizes.in}, 3, scale),
                    testing::random_argument({sizes.out, sizes.rank}, 4), testing::random_argument({sizes.out}, 5)};
  if (sizes.bias) result.weights.push_back(testing::random_argument({sizes.out}, 6));
  const auto at = [&](size_t i) { return testing::rounded(result.weights[i].values, dtype); };
  const Values norms = norms_of(at(0), at(1), at(2), sizes);
  const auto adapter = std::make_shared<Adapter>(Adapter{.scaling = kScaling});
  result.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    adapter->lora_a = w[1];
    adapter->lora_b = w[2];
    adapter->magnitude = w[3];
    return std::vector<Var>{dora_linear(tape, in[0], *w[0], sizes.bias ? w[4] : nullptr, *adapter, {})};
  };
  result.reference = [=](const std::vector<Values>& v) {
    const auto in = static_cast<size_t>(sizes.in), out = static_cast<size_t>(sizes.out),
               r = static_cast<size_t>(sizes.rank), tokens = static_cast<size_t>(sizes.tokens);
    const Values &x = v[0], &w = v[1], &a = v[2], &b = v[3], &magnitude = v[4];
    Values y(tokens * out);
    for (size_t t = 0; t < tokens; ++t) {
      Values xa(r);
      for (size_t rho = 0; rho < r; ++rho) {
        for (size_t i = 0; i < in; ++i) xa[rho] += x[t * in + i] * a[rho * in + i];
      }
      for (size_t o = 0; o < out; ++o) {
        double sum = 0;
        for (size_t i = 0; i < in; ++i) sum += x[t * in + i] * w[o * in + i];
        for (size_t rho = 0; rho < r; ++rho) sum += double{kScaling} * xa[rho] * b[o * r + rho];
        y[t * out + o] = magnitude[o] * sum / norms[o] + (sizes.bias ? v[5][o] : 0.0);
      }
    }
    return std::vector<Values>{y};
  };
  return result;
}

TEST(Dora, MatchesTheReferenceAndItsGradients) {
  for (const Sizes& sizes : {Sizes{5, 16, 8, 4}, Sizes{1, 8, 1, 1, true}, Sizes{70, 24, 40, 3, true}}) {
    expect_matches_reference(dora_case(sizes, DType::kF32), DType::kF32, 2e-6);
    expect_matches_reference(dora_case(sizes, DType::kBF16), DType::kBF16, 0x1p-6);
  }
}

TEST(Dora, IsThePlainAdapterWhereTheMagnitudeIsTheNorm) {
  const Sizes sizes{9, 32, 12, 4};
  OpCase op_case = dora_case(sizes, DType::kF32);
  op_case.weights[3].values =
      norms_of(op_case.weights[0].values, op_case.weights[1].values, op_case.weights[2].values, sizes);
  OpCase plain = op_case;
  plain.op = [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    static Adapter adapter;
    adapter = {.lora_a = w[1], .lora_b = w[2], .scaling = kScaling};
    return std::vector<Var>{linear(tape, in[0], *w[0], nullptr, &adapter)};
  };
  const Values ours = run_op(op_case, {}).outputs[0], theirs = run_op(plain, {}).outputs[0];
  for (size_t i = 0; i < theirs.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-5 * (1 + std::abs(theirs[i]))) << i;
}

}  // namespace
}  // namespace hone
