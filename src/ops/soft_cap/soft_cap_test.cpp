#include "ops/soft_cap/soft_cap.h"

#include <cmath>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

/// The gradient goes around the op, which has none.
TEST(SoftCap, MatchesTheReference) {
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 13}, Shape{3, 1701}, Shape{0, 4}}) {
    for (const float cap : {1.5f, 30.0f}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        testing::Argument x = testing::random_argument(shape, 1, 4.0, false);
        const OpCase op_case{
            .inputs = {x},
            .weights = {},
            .op = [cap](Tape& tape, const std::vector<Var>& in,
                        const std::vector<Weight*>&) { return std::vector<Var>{soft_cap(tape, in[0], cap)}; },
            .reference = {}};
        const Values got = run_op(op_case, {.dtype = dtype}).outputs[0];
        const Values rounded = testing::rounded(x.values, dtype);
        for (size_t i = 0; i < got.size(); ++i) {
          const double want = cap * std::tanh(rounded[i] / static_cast<double>(cap));
          // float32: 2^-22 of the cap; bfloat16: rounded once more.
          const double unit = dtype == DType::kBF16 ? 0x1p-8 * std::abs(want) : 0.0;
          ASSERT_NEAR(got[i], want, 0x1p-21 * static_cast<double>(cap) + unit) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hone
