#include "ops/latent_heads/latent_heads.h"

#include "kernels/op_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using testing::Values;

struct LatentCase {
  int64_t tokens;
  LatentHeadSizes sizes;
};

OpCase latent_case(const LatentCase& c) {
  OpCase result;
  const LatentHeadSizes& s = c.sizes;
  result.inputs = {testing::random_argument({c.tokens, s.kv_width()}, 1),
                   testing::random_argument({c.tokens, s.rope_dim}, 2)};
  result.op = [s](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
    const KeysAndValues heads = latent_heads(tape, in[0], in[1], s);
    return std::vector<Var>{heads.k, heads.v};
  };
  result.reference = [c, s](const std::vector<Values>& a) {
    Values k, v;
    for (int64_t token = 0; token < c.tokens; ++token) {
      for (int64_t head = 0; head < s.heads; ++head) {
        const auto kv = a[0].begin() + token * s.kv_width() + head * (s.nope_dim + s.v_dim);
        const auto shared = a[1].begin() + token * s.rope_dim;
        k.insert(k.end(), kv, kv + s.nope_dim);
        k.insert(k.end(), shared, shared + s.rope_dim);
        v.insert(v.end(), kv + s.nope_dim, kv + s.nope_dim + s.v_dim);
      }
    }
    return std::vector<Values>{k, v};
  };
  return result;
}

const LatentCase kCases[] = {{1, {1, 1, 1, 1}},  {7, {3, 5, 2, 4}},    {3, {2, 16, 8, 24}}, {0, {2, 4, 4, 4}},
                             {2, {5, 8, 96, 8}}, {2, {128, 8, 16, 8}}, {5, {4, 12, 8, 7}}};

TEST(LatentHeads, MatchesTheReferenceAndItsGradients) {
  for (const LatentCase& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " tokens, " << c.sizes.heads << " heads of " << c.sizes.nope_dim
                                      << " + " << c.sizes.rope_dim << ", " << c.sizes.v_dim);
    // Values are copied; the sum over heads has at most 128 terms.
    expect_matches_reference(latent_case(c), DType::kF32, 128 * 0x1p-24);
    expect_matches_reference(latent_case(c), DType::kBF16, 0x1p-8);  // rounded once
  }
}

TEST(LatentHeads, CopiesBits) {
  const OpCase op_case = latent_case(kCases[2]);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<Values> arguments;
    for (const auto& input : op_case.inputs) arguments.push_back(testing::rounded(input.values, dtype));
    EXPECT_EQ(testing::run_op(op_case, {.dtype = dtype}).outputs, op_case.reference(arguments));
  }
}

TEST(LatentHeads, GradientsOfTwoUsesAdd) {
  for (const LatentCase& c : {kCases[1], kCases[2]}) {
    OpCase twice = latent_case(c);
    twice.op = [s = c.sizes](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>&) {
      const KeysAndValues first = latent_heads(tape, in[0], in[1], s), second = latent_heads(tape, in[0], in[1], s);
      return std::vector<Var>{first.k, first.v, second.k, second.v};
    };
    twice.reference = [once = latent_case(c).reference](const std::vector<Values>& a) {
      const std::vector<Values> heads = once(a);
      return std::vector<Values>{heads[0], heads[1], heads[0], heads[1]};
    };
    expect_matches_reference(twice, DType::kF32, 128 * 0x1p-24);
    expect_matches_reference(twice, DType::kBF16, 0x1p-7);  // rounded twice
  }
}

}  // namespace
}  // namespace hone
