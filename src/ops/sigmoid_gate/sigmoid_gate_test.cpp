#include "ops/sigmoid_gate/sigmoid_gate.h"

#include <cmath>

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

struct Sizes {
  int64_t rows, columns, gates;  // gates: columns, or 1
};

Values reference_gate(const Values& gate, const Values& x, const Sizes& s) {
  Values y(x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const double g = gate[s.gates == s.columns ? i : i / static_cast<size_t>(s.columns)];
    y[i] = x[i] / (1 + std::exp(-g));
  }
  return y;
}

OpCase gate_case(const Sizes& s) {
  return {
      .inputs = {testing::random_argument({s.rows, s.gates}, 1, 2.0), testing::random_argument({s.rows, s.columns}, 2)},
      .weights = {},
      .op = [](Tape& tape, const std::vector<Var>& in,
               const std::vector<Weight*>&) { return std::vector<Var>{sigmoid_gate(tape, in[0], in[1])}; },
      .reference = [s](const std::vector<Values>& a) { return std::vector<Values>{reference_gate(a[0], a[1], s)}; }};
}

constexpr Sizes kSizes[] = {{1, 1, 1}, {7, 13, 13},  {7, 13, 1},  {3, 701, 701}, {3, 701, 1},  {0, 8, 8},
                            {0, 8, 1}, {33, 64, 64}, {33, 64, 1}, {2, 1100, 1},  {5, 264, 264}};

TEST(SigmoidGate, MatchesTheReferenceAndItsGradients) {
  for (const Sizes& s : kSizes) {
    SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.columns << ", " << s.gates << " gates a row");
    // The gradient of a row's gate sums up to 1100 products that partly cancel.
    expect_matches_reference(gate_case(s), DType::kF32, s.gates == 1 ? 5e-6 : 1e-6);
    // Two roundings of 2^-8 each: of the sigmoid and of the product.
    expect_matches_reference(gate_case(s), DType::kBF16, 0x1p-7);
  }
}

TEST(SigmoidGate, AddsToGradientsThatAreThere) {
  for (const Sizes& s : {Sizes{5, 11, 11}, Sizes{5, 11, 1}, Sizes{5, 64, 64}, Sizes{5, 64, 1}}) {
    OpCase twice = gate_case(s);
    twice.op = [](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
      return std::vector<Var>{sigmoid_gate(tape, in[0], in[1]), sigmoid_gate(tape, in[0], in[1])};
    };
    twice.reference = [s](const std::vector<Values>& a) {
      return std::vector<Values>{reference_gate(a[0], a[1], s), reference_gate(a[0], a[1], s)};
    };
    expect_matches_reference(twice, DType::kF32, 1e-6);
  }
}

/// In bfloat16 the sigmoid is rounded before the product, as in Hugging Face's modules.
TEST(SigmoidGate, RoundsTheSigmoidBeforeTheProduct) {
  for (const Sizes& s : {Sizes{40, 33, 33}, Sizes{40, 33, 1}}) {
    const OpCase op_case = gate_case(s);
    const testing::OpResult got = run_op(op_case, {.dtype = DType::kBF16});
    const Values gate = testing::rounded(op_case.inputs[0].values, DType::kBF16),
                 x = testing::rounded(op_case.inputs[1].values, DType::kBF16);
    const Values sigmoid = testing::rounded(reference_gate(gate, Values(x.size(), 1.0), s), DType::kBF16);
    Values y(x.size());
    for (size_t i = 0; i < y.size(); ++i) y[i] = sigmoid[i] * x[i];
    EXPECT_EQ(got.outputs[0], testing::rounded(y, DType::kBF16));
  }
}

}  // namespace
}  // namespace hone
