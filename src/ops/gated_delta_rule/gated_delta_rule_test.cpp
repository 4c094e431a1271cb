#include "ops/gated_delta_rule/gated_delta_rule.h"

#include <cmath>

#include "ops/recurrence_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using Packed = testing::PackedDocuments;
using testing::Values;

/// Elements of [rows, width] from `begin` on.
const double* row_at(const Values& values, int64_t row, int64_t width, int64_t begin) {
  return values.data() + row * width + begin;
}

/// The recurrence of one document and value head, token by token.
void recur(const std::vector<Values>& a, const DeltaHeads& heads, int64_t head, int64_t begin, int64_t end,
           Values& out) {
  const int64_t dk = heads.key_dim, dv = heads.value_dim, hv = heads.num_value_heads, hk = heads.num_key_heads;
  const int64_t key_head = head / heads.group();
  Values state(static_cast<size_t>(dk * dv));
  for (int64_t t = begin; t < end; ++t) {
    const double* q = row_at(a[0], t, heads.width(), key_head * dk);
    const double* k = row_at(a[0], t, heads.width(), (hk + key_head) * dk);
    const double* v = row_at(a[0], t, heads.width(), 2 * hk * dk + head * dv);
    double qq = 1e-6, kk = 1e-6;
    for (int64_t i = 0; i < dk; ++i) qq += q[i] * q[i], kk += k[i] * k[i];
    const double q_scale = 1 / std::sqrt(qq * static_cast<double>(dk)), k_scale = 1 / std::sqrt(kk);
    const auto h = static_cast<size_t>(head);
    const double x = *row_at(a[1], t, hv, head) + a[4][h];
    const double g = -std::exp(a[3][h]) * std::log1p(std::exp(x));
    const double beta = 1 / (1 + std::exp(-*row_at(a[2], t, hv, head)));
    for (double& s : state) s *= std::exp(g);
    for (int64_t j = 0; j < dv; ++j) {
      double known = 0, read = 0;
      for (int64_t i = 0; i < dk; ++i) known += state[static_cast<size_t>(i * dv + j)] * k[i] * k_scale;
      const double delta = beta * (v[j] - known);
      for (int64_t i = 0; i < dk; ++i) {
        double& s = state[static_cast<size_t>(i * dv + j)];
        s += k[i] * k_scale * delta;
        read += s * q[i] * q_scale;
      }
      out[static_cast<size_t>((t * hv + head) * dv + j)] = read;
    }
  }
}

Values delta_rule(const std::vector<Values>& a, const DeltaHeads& heads, const std::vector<int32_t>& offsets) {
  Values out(static_cast<size_t>(offsets.back() * heads.num_value_heads * heads.value_dim));
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    for (int64_t head = 0; head < heads.num_value_heads; ++head) recur(a, heads, head, offsets[n], offsets[n + 1], out);
  }
  return out;
}

OpCase delta_case(const Packed& packed, const DeltaHeads& heads) {
  const int64_t tokens = packed.tokens(), hv = heads.num_value_heads;
  return {
      .inputs = {testing::random_argument({tokens, heads.width()}, 1), testing::random_argument({tokens, hv}, 2),
                 testing::random_argument({tokens, hv}, 3)},
      .weights = {testing::random_argument({hv}, 4, 0.5), testing::random_argument({hv}, 5)},
      .op =
          [packed, heads](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
            return std::vector<Var>{gated_delta_rule(tape, {in[0], in[1], in[2], w[0], w[1]}, heads, packed.sequences)};
          },
      .reference =
          [packed, heads](const std::vector<Values>& a) {
            return std::vector<Values>{delta_rule(a, heads, packed.offsets)};
          }};
}

constexpr DeltaHeads kSmall{.num_key_heads = 1, .num_value_heads = 2, .key_dim = 4, .value_dim = 3};
constexpr DeltaHeads kEqual{.num_key_heads = 2, .num_value_heads = 2, .key_dim = 3, .value_dim = 5};
constexpr DeltaHeads kReal{.num_key_heads = 1, .num_value_heads = 2, .key_dim = 128, .value_dim = 128};

TEST(GatedDeltaRule, MatchesTheReferenceAndItsGradients) {
  // A value passes through products over at most 64 rows and 4 columns, the solution of a triangular system whose rows
  // have a norm of about 1, and the states of up to three chunks: some hundred roundings of 2^-24, most of which
  // cancel. bfloat16 on a CPU: inputs are exact, states float32, only results are rounded, 2^-9.
  const std::vector<std::vector<int>> documents = {{1}, {2}, {63}, {64, 1}, {65}, {5, 1, 0, 70, 3}, {130}};
  for (const auto& lengths : documents) {
    for (const DeltaHeads& heads : {kSmall, kEqual}) {
      SCOPED_TRACE(::testing::Message() << lengths[0] << " tokens first, Dk " << heads.key_dim);
      const OpCase op_case = delta_case(Packed(lengths), heads);
      expect_matches_reference(op_case, DType::kF32, 2e-5);
      expect_matches_reference(op_case, DType::kBF16, 0x1p-8);
    }
  }
}

/// Slow decay and strong corrections: g near 0 and β near 1, the hardest case for the triangular system.
TEST(GatedDeltaRule, HoldsWhereNothingIsForgotten) {
  OpCase op_case = delta_case(Packed({100}), kSmall);
  for (double& a : op_case.inputs[1].values) a -= 6;
  for (double& b : op_case.inputs[2].values) b += 4;
  expect_matches_reference(op_case, DType::kF32, 1e-4);
}

/// Gates that decay the state to zero within a token: exponentials underflow without producing NaN.
TEST(GatedDeltaRule, HoldsWhereAllIsForgotten) {
  OpCase op_case = delta_case(Packed({70}), kSmall);
  for (double& a_log : op_case.weights[0].values) a_log = 4;
  for (double& a : op_case.inputs[1].values) a += 5;
  expect_matches_reference(op_case, DType::kF32, 2e-5);
}

TEST(GatedDeltaRule, ServesTheSizesOfReleasedModels) {
  for (const auto& lengths : std::vector<std::vector<int>>{{150}, {1, 64, 2, 70}}) {
    SCOPED_TRACE(lengths[0]);
    testing::expect_slopes(delta_case(Packed(lengths), kReal), DType::kF32, 1e-5, 2);
    // On a GPU's tensor cores the operands of some ten consecutive products are rounded by 2^-9 each.
    testing::expect_slopes(delta_case(Packed(lengths), kReal), DType::kBF16, 0.01, 2);
  }
}

TEST(GatedDeltaRule, TensorCoresServeTheHeadsOfReleasedModels) {
  testing::expect_tensor_cores(delta_case(Packed({130, 5}), kReal), {"delta rule"}, "delta rule");
}

testing::CaseOfLengths delta_of(const DeltaHeads& heads) {
  return [heads](const std::vector<int>& lengths) { return delta_case(Packed(lengths), heads); };
}

TEST(GatedDeltaRule, DocumentsDoNotSeeEachOther) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const DeltaHeads& heads : {kSmall, kReal}) testing::expect_documents_apart(delta_of(heads), dtype);
  }
}

TEST(GatedDeltaRule, TheNumberOfDocumentsChangesNoBits) { testing::expect_same_bits_beside_documents(delta_of(kReal)); }

TEST(GatedDeltaRule, FiveHundredShortDocuments) { testing::expect_short_documents(delta_of(kSmall)); }

TEST(GatedDeltaRule, APassInPiecesGivesTheSameBits) {
  for (const DeltaHeads& heads : {kSmall, kReal}) {
    const Shape state{1, heads.num_value_heads, heads.key_dim, heads.value_dim};
    testing::expect_same_bits_in_pieces(delta_case(Packed({75}), heads), state, heads.num_value_heads * heads.value_dim,
                                        [&](const Context& context, const testing::RecurrencePiece& piece) {
                                          gated_delta_rule(context,
                                                           {.qkv = piece.inputs[0],
                                                            .a = piece.inputs[1],
                                                            .b = piece.inputs[2],
                                                            .a_log = piece.weights[0],
                                                            .dt_bias = piece.weights[1],
                                                            .out = piece.out,
                                                            .heads = heads,
                                                            .sequences = piece.sequences,
                                                            .state = {.s = piece.state, .lengths = piece.lengths}});
                                        });
  }
}

TEST(GatedDeltaRule, FrozenGatesGetNoGradientAndTheInputsStillDo) {
  OpCase op_case = delta_case(Packed({9, 66}), kSmall);
  for (testing::Argument& weight : op_case.weights) weight.differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 2e-5);
}

}  // namespace
}  // namespace hone
