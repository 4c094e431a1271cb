#include "ops/embedding/embedding.h"

#include <cmath>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestTensor;

using testing::OpCase;
using testing::Values;

struct TokenCase {
  std::vector<int32_t> ids;
  TestTensor<int32_t> tokens;

  explicit TokenCase(const std::vector<int32_t>& list) : ids(list), tokens(list, {static_cast<int64_t>(list.size())}) {}

  OpCase op_case(int64_t vocab, int64_t hidden) const {
    testing::Argument table = testing::random_argument({vocab, hidden}, 1);
    table.takes_narrow_gradient = true;
    return {.inputs = {},
            .weights = {table},
            .op =
                [this](Tape& tape, const std::vector<Var>&, const std::vector<Weight*>& w) {
                  return std::vector<Var>{embedding(tape, tokens, *w[0], w[0]->view().dense().dtype)};
                },
            .reference =
                [this, hidden](const std::vector<Values>& a) {
                  Values y;
                  for (int32_t id : ids) {
                    const auto row = a[0].begin() + id * hidden;
                    y.insert(y.end(), row, row + hidden);
                  }
                  return std::vector<Values>{y};
                }};
  }
};

TEST(Embedding, MatchesTheReferenceAndItsGradientWithRepeatedAndAbsentTokens) {
  struct Case {
    std::vector<int32_t> ids;
    int64_t vocab, hidden;
  };
  std::vector<int32_t> many;  // a few frequent tokens among others
  for (int32_t t = 0; t < 5003; ++t) many.push_back(t % 3 == 0 ? 2 : (7 * t + t / 11) % 13);
  const Case cases[] = {{{0}, 1, 1},
                        {{6, 0, 6, 6, 2}, 7, 131},
                        {std::vector<int32_t>(501, 4), 5, 3},
                        {{3, 1, 3}, 5, 8 * 33},
                        {many, 14, 4}};
  for (const Case& c : cases) {
    const TokenCase tokens(c.ids);
    // Values are copied; a gradient is a sum of up to some 1800 terms of order 1 in float32.
    expect_matches_reference(tokens.op_case(c.vocab, c.hidden), DType::kF32, 1e-5);
    expect_matches_reference(tokens.op_case(c.vocab, c.hidden), DType::kBF16, 1e-5);
  }
}

TEST(Embedding, ReadsAFloat32TableIntoBfloat16Activations) {
  const TokenCase tokens({2, 1, 2});
  OpCase op_case = tokens.op_case(3, 5);
  op_case.op = [&](Tape& tape, const std::vector<Var>&, const std::vector<Weight*>& w) {
    return std::vector<Var>{embedding(tape, tokens.tokens, *w[0], DType::kBF16)};
  };
  const testing::OpResult got = run_op(op_case, {});
  EXPECT_EQ(got.outputs[0], testing::rounded(op_case.reference({op_case.weights[0].values})[0], DType::kBF16));
}

TEST(Embedding, AddsToAGradientThatIsThere) {
  const TokenCase tokens({1, 0, 1});
  OpCase twice = tokens.op_case(3, 4);
  twice.weights[0].takes_narrow_gradient = false;  // would be rounded twice
  const auto once = twice.op;
  twice.op = [once](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    const Var first = once(tape, in, w)[0];
    return std::vector<Var>{first, once(tape, in, w)[0]};
  };
  const auto reference = twice.reference;
  twice.reference = [reference](const std::vector<Values>& a) {
    return std::vector<Values>{reference(a)[0], reference(a)[0]};
  };
  expect_matches_reference(twice, DType::kF32, 1e-6);
}

TEST(Embedding, ThePaddingRowGetsNoGradientAndTheOthersKeepTheirs) {
  const TokenCase tokens({1, 0, 2, 1});
  const OpCase plain = tokens.op_case(3, 4);
  OpCase padded = plain;
  padded.op = [&](Tape& tape, const std::vector<Var>&, const std::vector<Weight*>& w) {
    return std::vector<Var>{embedding(tape, tokens.tokens, *w[0], DType::kF32, 1)};
  };
  const testing::OpResult with = run_op(padded, {}), without = run_op(plain, {});
  EXPECT_EQ(with.outputs, without.outputs);
  Values expected = without.gradients[0];
  EXPECT_NE(expected[4], 0.0);
  std::fill(expected.begin() + 4, expected.begin() + 8, 0.0);
  EXPECT_EQ(with.gradients[0], expected);
}

TEST(Embedding, ATokenOutsideTheTableIsCaught) {
  const TokenCase tokens({1, 3, -1});
  if (test_device().kind == DeviceKind::kCpu) {
    EXPECT_ANY_THROW(run_op(tokens.op_case(3, 4), {}));
    return;
  }
  const testing::OpResult got = run_op(tokens.op_case(3, 4), {});
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(std::isnan(got.outputs[0][i]), i >= 4) << i;
  // Tokens in the table still get their gradient, and nothing else is written.
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(got.gradients[0][i] != 0.0, i / 4 == 1) << i;
}

}  // namespace
}  // namespace hone
