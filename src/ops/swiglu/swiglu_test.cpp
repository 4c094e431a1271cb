#include "ops/swiglu/swiglu.h"

#include <cmath>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

OpCase swiglu_case(Shape shape) {
  return {.inputs = {testing::random_argument(shape, 1, 2.0), testing::random_argument(shape, 2)},
          .weights = {},
          .op = [](Tape& tape, const std::vector<Var>& in,
                   const std::vector<Weight*>&) { return std::vector<Var>{swiglu(tape, in[0], in[1])}; },
          .reference =
              [](const std::vector<Values>& a) {
                Values y(a[0].size());
                for (size_t i = 0; i < y.size(); ++i) y[i] = a[0][i] / (1 + std::exp(-a[0][i])) * a[1][i];
                return std::vector<Values>{y};
              }};
}

TEST(Swiglu, MatchesTheReferenceAndItsGradients) {
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 13}, Shape{3, 701}}) {
    expect_matches_reference(swiglu_case(shape), DType::kF32, 1e-6);
    // Two roundings of 2^-8 each: of silu and of the product.
    expect_matches_reference(swiglu_case(shape), DType::kBF16, 0x1p-7);
  }
}

/// gate and up in one tensor, used twice.
TEST(Swiglu, TakesGateAndUpFromOneTensor) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {7, 13}, {3, 701}, {5, 64}, {2, 1100}}) {
    const OpCase fused{.inputs = {testing::random_argument({rows, 2 * columns}, 1)},
                       .weights = {},
                       .op =
                           [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
                             return std::vector<Var>{swiglu(tape, in[0]), swiglu(tape, in[0])};
                           },
                       .reference =
                           [rows, columns](const std::vector<Values>& a) {
                             Values y;
                             for (int64_t row = 0; row < rows; ++row) {
                               for (int64_t i = 0; i < columns; ++i) {
                                 const double gate = a[0][static_cast<size_t>(row * 2 * columns + i)];
                                 const double up = a[0][static_cast<size_t>((row * 2 + 1) * columns + i)];
                                 y.push_back(gate / (1 + std::exp(-gate)) * up);
                               }
                             }
                             return std::vector<Values>{y, y};
                           }};
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    expect_matches_reference(fused, DType::kF32, 1e-6);
    expect_matches_reference(fused, DType::kBF16, 0x1p-6);  // as below, and the sum of two gradients, rounded
  }
}

TEST(Swiglu, AddsToGradientsThatAreThere) {
  OpCase twice = swiglu_case({5, 11});
  twice.op = [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
    return std::vector<Var>{swiglu(tape, in[0], in[1]), swiglu(tape, in[1], in[0])};
  };
  twice.reference = [](const std::vector<Values>& a) {
    Values y(a[0].size()), z(a[0].size());
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = a[0][i] / (1 + std::exp(-a[0][i])) * a[1][i];
      z[i] = a[1][i] / (1 + std::exp(-a[1][i])) * a[0][i];
    }
    return std::vector<Values>{y, z};
  };
  expect_matches_reference(twice, DType::kF32, 1e-6);
}

/// In bfloat16 silu is rounded before the product, bitwise as in Hugging Face's MLPs.
TEST(Swiglu, RoundsSiluBeforeTheProduct) {
  OpCase op_case = swiglu_case({40, 33});
  const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
  const Values gate = testing::rounded(op_case.inputs[0].values, DType::kBF16),
               up = testing::rounded(op_case.inputs[1].values, DType::kBF16);
  Values silu(gate.size()), y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) silu[i] = gate[i] / (1 + std::exp(-gate[i]));
  silu = testing::rounded(silu, DType::kBF16);
  for (size_t i = 0; i < y.size(); ++i) y[i] = silu[i] * up[i];
  EXPECT_EQ(got.outputs[0], testing::rounded(y, DType::kBF16));
}

}  // namespace
}  // namespace hone
