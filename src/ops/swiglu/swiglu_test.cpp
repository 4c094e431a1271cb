#include "ops/swiglu/swiglu.h"

#include <cmath>

#include "ops/op_harness.h"

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

/// In bfloat16 silu is rounded before the product, bit for bit as Hugging Face's MLPs do.
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
