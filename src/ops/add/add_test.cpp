#include "ops/add/add.h"

#include "ops/op_harness.h"

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
                return std::vector<Var>{add(tape, sum, in[0])};  // a second use: the gradients of both add up
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

}  // namespace
}  // namespace hone
