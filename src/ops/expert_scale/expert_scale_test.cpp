#include "ops/expert_scale/expert_scale.h"

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

/// T tokens choose k of E experts; the last expert is never chosen. Used twice, so that gradients are added.
struct ScaleCase {
  std::vector<int32_t> chosen;
  std::unique_ptr<testing::TestTensor<int32_t>> ids;
  OpCase op_case;

  ScaleCase(int64_t tokens, int64_t k, int64_t experts) {
    PhiloxSequence random(7);
    for (int64_t i = 0; i < tokens * k; ++i) {
      chosen.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(std::max<int64_t>(experts - 1, 1)))));
    }
    ids = std::make_unique<testing::TestTensor<int32_t>>(chosen, Shape{tokens, k});
    op_case.inputs = {testing::random_argument({tokens, k}, 1)};
    op_case.weights = {testing::random_argument({experts}, 2)};
    op_case.op = [this](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
      const Var choice = tape.input(ids->tensor());
      return std::vector<Var>{expert_scale(tape, in[0], choice, *w[0]), expert_scale(tape, in[0], choice, *w[0])};
    };
    op_case.reference = [this](const std::vector<Values>& a) {
      Values y(a[0].size());
      for (size_t i = 0; i < y.size(); ++i) y[i] = a[0][i] * a[1][static_cast<size_t>(chosen[i])];
      return std::vector<Values>{y, y};
    };
  }
};

TEST(ExpertScale, MatchesTheReferenceAndItsGradients) {
  for (const auto& [tokens, k, experts] : {std::tuple{1, 1, 1}, {7, 2, 5}, {33, 8, 40}, {0, 2, 4}, {300, 3, 4}}) {
    const ScaleCase c(tokens, k, experts);
    expect_matches_reference(c.op_case, DType::kF32, 1e-5);  // sums of up to 300 terms
    expect_matches_reference(c.op_case, DType::kBF16, 0x1p-7);
  }
}

TEST(ExpertScale, AFrozenScaleGetsNoGradientAndTheWeightsStillDo) {
  ScaleCase c(7, 2, 5);
  c.op_case.weights[0].differentiable = false;
  expect_matches_reference(c.op_case, DType::kF32, 1e-6);
}

}  // namespace
}  // namespace hone
