#include "ops/ssd_scan/ssd_scan.h"

#include <cmath>

#include "ops/recurrence_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using Packed = testing::PackedDocuments;
using testing::Values;

/// The recurrence of one document and head, token by token. The arguments are xbc, dt, a_log, dt_bias and d.
void recur(const std::vector<Values>& a, const SsdHeads& heads, int64_t head, int64_t begin, int64_t end, Values& out) {
  const int64_t dim = heads.head_dim, size = heads.state_size, group = head / heads.group();
  const auto h = static_cast<size_t>(head);
  Values state(static_cast<size_t>(size * dim));
  for (int64_t t = begin; t < end; ++t) {
    const double* x = a[0].data() + t * heads.width() + head * dim;
    const double* b = a[0].data() + t * heads.width() + heads.inner() + group * size;
    const double* c = b + heads.keys();
    const double softplus = std::log1p(std::exp(a[1][static_cast<size_t>(t * heads.num_heads + head)] + a[3][h]));
    const double delta = std::clamp(softplus, double{heads.min_step}, double{heads.max_step});
    for (double& s : state) s *= std::exp(-std::exp(a[2][h]) * delta);
    for (int64_t j = 0; j < dim; ++j) {
      double read = a[4][h] * x[j];
      for (int64_t k = 0; k < size; ++k) {
        double& s = state[static_cast<size_t>(k * dim + j)];
        s += delta * b[k] * x[j];
        read += s * c[k];
      }
      out[static_cast<size_t>((t * heads.num_heads + head) * dim + j)] = read;
    }
  }
}

Values scanned(const std::vector<Values>& a, const SsdHeads& heads, const std::vector<int32_t>& offsets) {
  Values out(static_cast<size_t>(offsets.back() * heads.inner()));
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    for (int64_t head = 0; head < heads.num_heads; ++head) recur(a, heads, head, offsets[n], offsets[n + 1], out);
  }
  return out;
}

OpCase scan_case(const Packed& packed, const SsdHeads& heads) {
  const int64_t tokens = packed.tokens(), count = heads.num_heads;
  return {
      .inputs = {testing::random_argument({tokens, heads.width()}, 1), testing::random_argument({tokens, count}, 2)},
      .weights = {testing::random_argument({count}, 3, 0.5), testing::random_argument({count}, 4),
                  testing::random_argument({count}, 5)},
      .op =
          [packed, heads](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
            return std::vector<Var>{ssd_scan(tape, {in[0], in[1], w[0], w[1], w[2]}, heads, packed.sequences)};
          },
      .reference =
          [packed, heads](const std::vector<Values>& a) {
            return std::vector<Values>{scanned(a, heads, packed.offsets)};
          }};
}

constexpr SsdHeads kSmall{.num_heads = 2, .head_dim = 3, .num_groups = 1, .state_size = 4};
/// Two groups of more heads than a block has, and a bound below and above that some steps reach.
constexpr SsdHeads kGroups{
    .num_heads = 10, .head_dim = 1, .num_groups = 2, .state_size = 3, .min_step = 0.3f, .max_step = 1.5f};
constexpr SsdHeads kReal{.num_heads = 6, .head_dim = 64, .num_groups = 1, .state_size = 128};
constexpr SsdHeads kRealGroups{.num_heads = 4, .head_dim = 64, .num_groups = 2, .state_size = 128};
/// More heads in a group than a GPU's CTA has.
constexpr SsdHeads kManyHeads{.num_heads = 13, .head_dim = 64, .num_groups = 1, .state_size = 128};

TEST(SsdScan, MatchesTheReferenceAndItsGradients) {
  // A value passes through products over at most 64 rows and 4 columns and the states of up to three chunks: some
  // hundred roundings of 2^-24, most of which cancel. bfloat16 on a CPU: inputs are exact, states float32, only results
  // are rounded, 2^-9.
  const std::vector<std::vector<int>> documents = {{1},   {2},         {63}, {64, 1}, {65}, {5, 1, 0, 70, 3},
                                                   {130}, {31, 33, 64}};
  for (const auto& lengths : documents) {
    SCOPED_TRACE(::testing::Message() << lengths[0] << " tokens first");
    const OpCase op_case = scan_case(Packed(lengths), kSmall);
    expect_matches_reference(op_case, DType::kF32, 2e-5);
    expect_matches_reference(op_case, DType::kBF16, 0x1p-8);
  }
}

TEST(SsdScan, MatchesTheReferenceWithGroupsAndBounds) {
  for (const auto& lengths : std::vector<std::vector<int>>{{3, 2}, {70}}) {
    const OpCase op_case = scan_case(Packed(lengths), kGroups);
    expect_matches_reference(op_case, DType::kF32, 2e-5);
    expect_matches_reference(op_case, DType::kBF16, 0x1p-8);
  }
}

/// Decays that clear the state within a token: exponentials underflow without producing NaN.
TEST(SsdScan, HoldsWhereAllIsForgotten) {
  OpCase op_case = scan_case(Packed({70}), kSmall);
  for (double& a_log : op_case.weights[0].values) a_log = 4;
  for (double& dt : op_case.inputs[1].values) dt += 5;
  expect_matches_reference(op_case, DType::kF32, 2e-5);
}

/// Decays near one: states grow over the whole document.
TEST(SsdScan, HoldsWhereNothingIsForgotten) {
  OpCase op_case = scan_case(Packed({140}), kSmall);
  for (double& a_log : op_case.weights[0].values) a_log -= 9;
  expect_matches_reference(op_case, DType::kF32, 2e-5);
}

TEST(SsdScan, ServesTheSizesOfReleasedModels) {
  for (const auto& lengths : std::vector<std::vector<int>>{{150}, {1, 64, 2, 70}}) {
    SCOPED_TRACE(lengths[0]);
    testing::expect_slopes(scan_case(Packed(lengths), kReal), DType::kF32, 1e-5, 1);
    for (const SsdHeads& heads : {kReal, kRealGroups, kManyHeads}) {
      // Results are rounded by 2^-9, and on a GPU one operand of each of their products.
      testing::expect_slopes(scan_case(Packed(lengths), heads), DType::kBF16, 0.01, 1);
    }
  }
}

/// One block of heads per group, or several.
TEST(SsdScan, TensorCoresServeTheHeadsOfReleasedModels) {
  for (const SsdHeads& heads : {kReal, kRealGroups, kManyHeads}) {
    testing::expect_tensor_cores(scan_case(Packed({130, 5}), heads), {"state-space scan"}, "state-space scan");
  }
}

testing::CaseOfLengths scan_of(const SsdHeads& heads) {
  return [heads](const std::vector<int>& lengths) { return scan_case(Packed(lengths), heads); };
}

TEST(SsdScan, DocumentsDoNotSeeEachOther) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const SsdHeads& heads : {kSmall, kReal}) testing::expect_documents_apart(scan_of(heads), dtype);
  }
}

TEST(SsdScan, TheNumberOfDocumentsChangesNoBits) { testing::expect_same_bits_beside_documents(scan_of(kReal)); }

TEST(SsdScan, FiveHundredShortDocuments) { testing::expect_short_documents(scan_of(kSmall)); }

TEST(SsdScan, APassInPiecesGivesTheSameBits) {
  for (const SsdHeads& heads : {kSmall, kGroups, kReal}) {
    const Shape state{1, heads.num_heads, heads.state_size, heads.head_dim};
    testing::expect_same_bits_in_pieces(scan_case(Packed({75}), heads), state, heads.inner(),
                                        [&](const Context& context, const testing::RecurrencePiece& piece) {
                                          ssd_scan(context, {.xbc = piece.inputs[0],
                                                             .dt = piece.inputs[1],
                                                             .a_log = piece.weights[0],
                                                             .dt_bias = piece.weights[1],
                                                             .d = piece.weights[2],
                                                             .out = piece.out,
                                                             .heads = heads,
                                                             .sequences = piece.sequences,
                                                             .state = {.s = piece.state, .lengths = piece.lengths}});
                                        });
  }
}

TEST(SsdScan, FrozenWeightsGetNoGradientAndTheInputsStillDo) {
  OpCase op_case = scan_case(Packed({9, 66}), kSmall);
  for (testing::Argument& weight : op_case.weights) weight.differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 2e-5);
}

}  // namespace
}  // namespace hone
