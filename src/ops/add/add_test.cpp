#include "ops/add/add.h"

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

OpCase add_case(Shape shape) {
  return {.inputs = {testing::random_argument(shape, 1), testing::random_argument(shape, 2)},
          .weights = {},
          .op =
              [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
                const Var sum = add(tape, in[0], in[1]);
                return std::vector<Var>{add(tape, sum, in[0])};  // a second use: both gradients are added
              },
          .reference =
              [](const std::vector<Values>& a) {
                Values y(a[0].size());
                for (size_t i = 0; i < y.size(); ++i) y[i] = 2 * a[0][i] + a[1][i];
                return std::vector<Values>{y};
              }};
}

TEST(Add, MatchesTheReferenceAndItsGradients) {
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 13}, Shape{3, 5}, Shape{0, 4}, Shape{3, 1000}}) {
    expect_matches_reference(add_case(shape), DType::kF32, 1e-6);
    expect_matches_reference(add_case(shape), DType::kBF16,
                             0x1p-7);  // two roundings of 2^-9 each, of values up to twice
  }
}

/// Both inputs are used twice, so that gradients are added.
OpCase scaled_case(Shape shape, float factor) {
  const auto m = static_cast<double>(factor);
  return {.inputs = {testing::random_argument(shape, 1), testing::random_argument(shape, 2)},
          .weights = {},
          .op =
              [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
                const Var sum = add(tape, in[0], in[1], factor);
                return std::vector<Var>{add(tape, scale(tape, sum, factor), in[0], factor)};
              },
          .reference =
              [=](const std::vector<Values>& a) {
                Values y(a[0].size());
                for (size_t i = 0; i < y.size(); ++i) y[i] = 2 * m * a[0][i] + m * m * a[1][i];
                return std::vector<Values>{y};
              }};
}

TEST(Add, ScalesItsSecondTerm) {
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 13}, Shape{3, 1000}}) {
    for (const float factor : {0.22f, 1.0f, -3.0f}) {
      expect_matches_reference(scaled_case(shape, factor), DType::kF32, 1e-6);
      // Five roundings of 2^-9 each, of terms that may be larger than their sum.
      expect_matches_reference(scaled_case(shape, factor), DType::kBF16, 5 * 0x1p-8);
    }
  }
}

/// Used twice, so that gradients are added.
TEST(Add, ScalesByAFactorInMemory) {
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 13}, Shape{3, 1000}}) {
    const OpCase op_case{.inputs = {testing::random_argument(shape, 1)},
                         .weights = {{.shape = {1}, .values = {-0.625}, .differentiable = false}},
                         .op =
                             [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
                               return std::vector<Var>{scale(tape, in[0], *w[0]), scale(tape, in[0], *w[0])};
                             },
                         .reference =
                             [](const std::vector<Values>& a) {
                               Values y(a[0].size());
                               for (size_t i = 0; i < y.size(); ++i) y[i] = a[1][0] * a[0][i];
                               return std::vector<Values>{y, y};
                             }};
    expect_matches_reference(op_case, DType::kF32, 1e-6);
  }
}

TEST(Add, RoundsTheScaledTermBeforeTheSum) {
  const OpCase op_case{
      .inputs = {testing::random_argument({9, 50}, 1), testing::random_argument({9, 50}, 2)},
      .weights = {},
      .op = [](Tape& tape, const std::vector<Var>& in,
               const std::vector<Weight*>&) { return std::vector<Var>{add(tape, in[0], in[1], 0.22f)}; },
      .reference = {}};
  const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
  Values term = testing::rounded(op_case.inputs[1].values, DType::kBF16);
  for (double& value : term) value = static_cast<double>(0.22f * static_cast<float>(value));
  term = testing::rounded(term, DType::kBF16);
  Values y = testing::rounded(op_case.inputs[0].values, DType::kBF16);
  for (size_t i = 0; i < y.size(); ++i) y[i] += term[i];
  EXPECT_EQ(got.outputs[0], testing::rounded(y, DType::kBF16));
}

}  // namespace
}  // namespace hone
