#include "ops/clamp/clamp.h"

#include <algorithm>
#include <cmath>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

/// Normal values, none of which is rounded to a limit, where there is no derivative.
testing::Argument off_the_limits(Shape shape) {
  testing::Argument argument = testing::random_argument(shape, 1);
  for (double& value : argument.values) {
    for (const double limit : {0.75, 2.0}) {
      if (std::abs(std::abs(value) - limit) < 0.02) value = 0.5 * limit;
    }
  }
  return argument;
}

/// Used twice, so that gradients are added. The limits are bfloat16 numbers.
OpCase clamp_case(Shape shape) {
  return {.inputs = {off_the_limits(shape)},
          .weights = {},
          .op =
              [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
                return std::vector<Var>{clamp(tape, in[0], 0.75f), clamp(tape, in[0], 2.0f)};
              },
          .reference =
              [](const std::vector<Values>& a) {
                Values y = a[0], z = a[0];
                for (double& value : y) value = std::clamp(value, -0.75, 0.75);
                for (double& value : z) value = std::clamp(value, -2.0, 2.0);
                return std::vector<Values>{y, z};
              }};
}

TEST(Clamp, MatchesTheReferenceAndItsGradients) {
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 13}, Shape{3, 701}, Shape{0, 4}}) {
    expect_matches_reference(clamp_case(shape), DType::kF32, 1e-6);
    expect_matches_reference(clamp_case(shape), DType::kBF16, 0x1p-8);  // the sum of two gradients is rounded
  }
}

TEST(Clamp, PassesTheGradientAtTheLimitAndKeepsNaN) {
  const OpCase op_case{.inputs = {{.shape = {1, 4}, .values = {0.5, -0.5, 0.75, std::nan("")}}},
                       .weights = {},
                       .op = [](Tape& tape, const std::vector<Var>& in,
                                const std::vector<Weight*>&) { return std::vector<Var>{clamp(tape, in[0], 0.5f)}; },
                       .reference = {}};
  const testing::OpResult got = run_op(op_case, {});
  const Values seeds = testing::output_seeds(got.outputs, DType::kF32)[0];
  EXPECT_EQ(got.outputs[0][0], 0.5);
  EXPECT_EQ(got.outputs[0][1], -0.5);
  EXPECT_EQ(got.outputs[0][2], 0.5);
  EXPECT_TRUE(std::isnan(got.outputs[0][3]));
  EXPECT_EQ(got.gradients[0], (Values{seeds[0], seeds[1], 0.0, seeds[3]}));
}

}  // namespace
}  // namespace hone
