#include "ops/mlp_activation/mlp_activation.h"

#include <cmath>
#include <numbers>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

constexpr MlpActivation kSwigluMlp{}, kGegluMlp{MlpActivation::Kind::kGeglu},
    kSquaredReluMlp{MlpActivation::Kind::kSquaredRelu};

double glu(const MlpActivation& function, double x) {
  if (!function.gated()) return x > 0 ? x * x : 0;
  if (function == kSwigluMlp) return x / (1 + std::exp(-x));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

OpCase gated_case(const MlpActivation& function, Shape shape) {
  return {
      .inputs = {testing::random_argument(shape, 1, 2.0), testing::random_argument(shape, 2)},
      .weights = {},
      .op = [=](Tape& tape, const std::vector<Var>& in,
                const std::vector<Weight*>&) { return std::vector<Var>{mlp_activation(tape, function, in[0], in[1])}; },
      .reference =
          [=](const std::vector<Values>& a) {
            Values y(a[0].size());
            for (size_t i = 0; i < y.size(); ++i) y[i] = glu(function, a[0][i]) * a[1][i];
            return std::vector<Values>{y};
          }};
}

/// h in one tensor, used twice.
OpCase joined_case(const MlpActivation& function, int64_t rows, int64_t width) {
  return {.inputs = {testing::random_argument({rows, function.columns(width)}, 1)},
          .weights = {},
          .op =
              [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
                return std::vector<Var>{mlp_activation(tape, function, in[0]), mlp_activation(tape, function, in[0])};
              },
          .reference =
              [=](const std::vector<Values>& a) {
                Values y;
                for (int64_t row = 0; row < rows; ++row) {
                  const double* h = a[0].data() + row * function.columns(width);
                  for (int64_t i = 0; i < width; ++i) {
                    y.push_back(glu(function, h[i]) * (function.gated() ? h[width + i] : 1));
                  }
                }
                return std::vector<Values>{y, y};
              }};
}

TEST(MlpActivation, MatchesTheReferenceAndItsGradients) {
  for (const MlpActivation& function : {kSwigluMlp, kGegluMlp}) {
    for (const Shape& shape : {Shape{1, 1}, Shape{7, 13}, Shape{3, 701}}) {
      expect_matches_reference(gated_case(function, shape), DType::kF32, 1e-6);
      // Two roundings of 2^-8 each: of glu and of the product.
      expect_matches_reference(gated_case(function, shape), DType::kBF16, 0x1p-7);
    }
  }
}

TEST(MlpActivation, TakesGateAndUpFromOneTensor) {
  for (const MlpActivation& function : {kSwigluMlp, kGegluMlp, kSquaredReluMlp}) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {7, 13}, {3, 701}, {5, 64}, {2, 1100}}) {
      SCOPED_TRACE(::testing::Message() << function.name() << " " << rows << " x " << width);
      expect_matches_reference(joined_case(function, rows, width), DType::kF32, 1e-6);
      // As above, and the sum of two gradients, rounded.
      expect_matches_reference(joined_case(function, rows, width), DType::kBF16, 0x1p-6);
    }
  }
}

TEST(MlpActivation, AddsToGradientsThatAreThere) {
  OpCase twice = gated_case(kSwigluMlp, {5, 11});
  twice.op = [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
    return std::vector<Var>{mlp_activation(tape, kSwigluMlp, in[0], in[1]),
                            mlp_activation(tape, kSwigluMlp, in[1], in[0])};
  };
  twice.reference = [](const std::vector<Values>& a) {
    Values y(a[0].size()), z(a[0].size());
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = glu(kSwigluMlp, a[0][i]) * a[1][i];
      z[i] = glu(kSwigluMlp, a[1][i]) * a[0][i];
    }
    return std::vector<Values>{y, z};
  };
  expect_matches_reference(twice, DType::kF32, 1e-6);
}

/// In bfloat16 glu is rounded before the product, bitwise as in Hugging Face's MLPs.
TEST(MlpActivation, RoundsGluBeforeTheProduct) {
  for (const MlpActivation& function : {kSwigluMlp, kGegluMlp}) {
    OpCase op_case = gated_case(function, {40, 33});
    const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
    const Values gate = testing::rounded(op_case.inputs[0].values, DType::kBF16),
                 up = testing::rounded(op_case.inputs[1].values, DType::kBF16);
    Values of_gate(gate.size()), y(gate.size());
    for (size_t i = 0; i < y.size(); ++i) of_gate[i] = glu(function, gate[i]);
    of_gate = testing::rounded(of_gate, DType::kBF16);
    for (size_t i = 0; i < y.size(); ++i) y[i] = of_gate[i] * up[i];
    EXPECT_EQ(got.outputs[0], testing::rounded(y, DType::kBF16));
  }
}

}  // namespace
}  // namespace hone
