#include "ops/qk_norm_rope/qk_norm_rope.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/cpu/isa_testing.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"
#include "ops/qk_norm_rope/rope_table.h"
#include "tape/pass_runner.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

using testing::OpCase;
using testing::Values;

constexpr float kEps = 1e-6f;

struct RopeShape {
  int64_t tokens, heads, head_dim, rotary_dim;
  bool norm;
  RotaryLayout layout = {};
  NormWeighting weighting = NormWeighting::kPlain;
};

/// Positions and table with their own memory.
struct RopeFixture {
  RopeTableValues values;  // what the table is made of
  std::vector<int32_t> at;
  Buffer cos_bytes, sin_bytes, position_bytes;
  RopeTable table;
  Tensor positions;

  RopeFixture(const RopeShape& shape, std::vector<int32_t> position_list) : at(std::move(position_list)) {
    const int64_t longest = *std::max_element(at.begin(), at.end()) + 1;
    values = rope_table_values(rope_frequencies({.rotary_dim = shape.rotary_dim, .max_position_embeddings = 64}, 64),
                               longest);
    const auto upload = [](Buffer& buffer, const auto& host, Shape s, DType dtype) {
      buffer = Buffer(test_device(), host.size() * 4);
      Tensor tensor = buffer.tensor(s, dtype);
      copy_from_host(tensor, host.data(), host.size() * 4);
      return tensor;
    };
    table = {upload(cos_bytes, values.cos, {longest, shape.rotary_dim / 2}, DType::kF32),
             upload(sin_bytes, values.sin, {longest, shape.rotary_dim / 2}, DType::kF32)};
    positions = upload(position_bytes, at, {shape.tokens}, DType::kI32);
  }
};

/// Positions of documents of 3, 5, 3, 5, … tokens.
std::vector<int32_t> packed_positions(int64_t tokens) {
  std::vector<int32_t> positions;
  while (static_cast<int64_t>(positions.size()) < tokens) {
    for (int32_t i = 0; i < 3; ++i) positions.push_back(i);
    for (int32_t i = 0; i < 5; ++i) positions.push_back(7 + i);
  }
  positions.resize(static_cast<size_t>(tokens));
  return positions;
}

Values reference(const RopeShape& s, const RopeFixture& fixture, const Values& x, const Values* w) {
  Values y(x.size());
  const int64_t half = s.rotary_dim / 2;
  for (int64_t t = 0; t < s.tokens; ++t) {
    const float* cos = fixture.values.cos.data() + fixture.at[static_cast<size_t>(t)] * half;
    const float* sin = fixture.values.sin.data() + fixture.at[static_cast<size_t>(t)] * half;
    for (int64_t h = 0; h < s.heads; ++h) {
      const size_t at = static_cast<size_t>((t * s.heads + h) * s.head_dim);
      Values z(x.begin() + static_cast<long>(at), x.begin() + static_cast<long>(at) + s.head_dim);
      if (w) {
        double squares = 0;
        for (double value : z) squares += value * value;
        const double scale = 1 / std::sqrt(squares / static_cast<double>(s.head_dim) + static_cast<double>(kEps));
        for (size_t i = 0; i < z.size(); ++i)
          z[i] *= scale * ((*w)[i] + (s.weighting == NormWeighting::kFromOne ? 1 : 0));
      }
      for (size_t i = 0; i < z.size(); ++i) y[at + i] = z[i];
      for (int64_t pair = 0; pair < half; ++pair) {
        const auto i = static_cast<size_t>(s.layout.offset + (s.layout.interleaved ? 2 * pair : pair));
        const size_t j = i + (s.layout.interleaved ? 1 : static_cast<size_t>(half));
        y[at + i] = z[i] * cos[pair] - z[j] * sin[pair];
        y[at + j] = z[j] * cos[pair] + z[i] * sin[pair];
      }
    }
  }
  return y;
}

OpCase rope_case(const RopeShape& s, const std::shared_ptr<RopeFixture>& fixture) {
  OpCase result;
  result.inputs = {testing::random_argument({s.tokens, s.heads * s.head_dim}, 1)};
  if (s.norm) result.weights = {testing::random_argument({s.head_dim}, 2)};
  result.op = [s, fixture](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& weights) {
    Weight* norm = weights.empty() ? nullptr : weights[0];
    return std::vector<Var>{
        qk_norm_rope(tape, in[0], norm, kEps, fixture->table, fixture->positions, s.head_dim, s.layout, s.weighting)};
  };
  result.reference = [s, fixture](const std::vector<Values>& a) {
    return std::vector<Values>{reference(s, *fixture, a[0], s.norm ? &a[1] : nullptr)};
  };
  return result;
}

TEST(QkNormRope, MatchesTheReferenceAndItsGradients) {
  for (const RopeShape& s :
       {RopeShape{1, 1, 16, 16, true}, RopeShape{7, 3, 6, 4, true}, RopeShape{37, 2, 32, 32, true},
        RopeShape{5, 2, 24, 24, false}, RopeShape{3, 1, 128, 32, true}, RopeShape{3, 5, 64, 64, true},
        RopeShape{2, 9, 64, 64, false}, RopeShape{3, 3, 128, 128, true}, RopeShape{2, 1, 256, 256, true},
        RopeShape{3, 2, 64, 64, false, {.interleaved = true}}, RopeShape{7, 2, 10, 6, true, {.offset = 4}},
        RopeShape{5, 3, 12, 4, true, {.offset = 3, .interleaved = true}},
        RopeShape{3, 2, 192, 64, false, {.offset = 128, .interleaved = true}}, RopeShape{2, 2, 256, 64, true},
        RopeShape{9, 1, 64, 64, false, {.interleaved = true}},
        RopeShape{3, 2, 64, 64, true, {}, NormWeighting::kFromOne},
        RopeShape{5, 2, 32, 8, true, {}, NormWeighting::kFromOne},
        RopeShape{3, 2, 64, 64, true, {}, NormWeighting::kOnce},
        RopeShape{2, 2, 512, 512, true, {}, NormWeighting::kOnce}}) {
    const auto fixture = std::make_shared<RopeFixture>(s, packed_positions(s.tokens));
    const OpCase op_case = rope_case(s, fixture);
    SCOPED_TRACE("tokens " + std::to_string(s.tokens) + " head_dim " + std::to_string(s.head_dim));
    // float32: sums of up to 128 terms, each rounded by 2^-24, plus the ten roundings around them.
    expect_matches_reference(op_case, DType::kF32, 1e-5);
    // bf16: y has three roundings of 2^-9 (cast, product, result), of which two are combined over a pair by the
    // rotation (factor sqrt 2); dx and dw have two.
    expect_matches_reference(op_case, DType::kBF16, 4.0 * 0x1p-9);
  }
}

/// Queries and keys of one node have the bits of each by itself; 128: the kernel of both, 24: one for each.
TEST(QkNormRope, QueriesAndKeysTogetherAreThoseByThemselves) {
  for (const int64_t dim : {24, 64, 128, 256}) {
    const RopeShape shape{37, 1, dim, dim, true};
    const RopeFixture fixture(shape, packed_positions(shape.tokens));
    const auto weight = [&](uint64_t key) {
      return testing::TestWeight(testing::random_argument({dim}, key), DType::kBF16);
    };
    testing::TestWeight q_norm = weight(1), k_norm = weight(2);
    const auto heads = [&](int64_t count, uint64_t key) {
      const Values values = testing::random_argument({shape.tokens, count * dim}, key).values;
      return testing::TestTensor<BFloat16>({values.begin(), values.end()}, {shape.tokens, count * dim});
    };
    const auto q = heads(9, 3), k = heads(2, 4);
    ThreadPool pool(2);
    TestStream stream(pool);
    PassRunner passes(stream);
    TapePlan plan;
    const auto run = [&] {
      Tape tape = passes.tape(plan);
      tape.block([&] {
        const auto& [table, positions] = std::tie(fixture.table, fixture.positions);
        const QkVars both =
            qk_norm_rope(tape, {tape.input(q), tape.input(k)}, {&q_norm, &k_norm}, kEps, table, positions, dim);
        const Var q_alone = qk_norm_rope(tape, tape.input(q), &q_norm, kEps, table, positions, dim);
        const Var k_alone = qk_norm_rope(tape, tape.input(k), &k_norm, kEps, table, positions, dim);
        if (passes.context().dry()) return;
        const auto read = [&](Var var) { return stream.download<BFloat16>(tape.data(var)); };
        EXPECT_EQ(read(both[0]), read(q_alone)) << dim;
        EXPECT_EQ(read(both[1]), read(k_alone)) << dim;
      });
    };
    passes.measure(run);
    passes.reserve();
    run();
  }
}

/// More tokens than central differences can afford: compares with the gradients' formulas in float64.
TEST(QkNormRope, ManyTokensMatchTheFormulas) {
  for (const RopeShape& s :
       {RopeShape{300, 5, 128, 128, true}, RopeShape{700, 1, 64, 64, true}, RopeShape{150, 3, 256, 256, true},
        RopeShape{600, 3, 48, 32, true}, RopeShape{300, 2, 192, 64, true, {.offset = 128, .interleaved = true}}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(::testing::Message() << "tokens " << s.tokens << " head_dim " << s.head_dim);
      const auto fixture = std::make_shared<RopeFixture>(s, packed_positions(s.tokens));
      const OpCase op_case = rope_case(s, fixture);
      const testing::OpResult got = run_op(op_case, {.dtype = dtype});
      const Values x = testing::rounded(op_case.inputs[0].values, dtype);
      const Values w = testing::rounded(op_case.weights[0].values, dtype);
      const Values dy = testing::output_seeds(got.outputs, dtype)[0], y = reference(s, *fixture, x, &w);
      // z -> y is a rotation, so dz is dy rotated back: with a negated sine.
      RopeFixture back = RopeFixture(s, fixture->at);
      for (float& sin : back.values.sin) sin = -sin;
      const Values dz = reference(s, back, dy, nullptr);
      Values dx(x.size()), dw(w.size());
      const auto dim = static_cast<size_t>(s.head_dim);
      for (size_t begin = 0; begin < x.size(); begin += dim) {
        double squares = 0, projection = 0;
        for (size_t i = 0; i < dim; ++i) {
          squares += x[begin + i] * x[begin + i];
          projection += x[begin + i] * dz[begin + i] * w[i];
        }
        const double r = 1 / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(kEps));
        for (size_t i = 0; i < dim; ++i) {
          const double n = x[begin + i] * r;
          dx[begin + i] = r * (dz[begin + i] * w[i] - n * projection * r / static_cast<double>(dim));
          dw[i] += dz[begin + i] * n;
        }
      }
      // y as in the test above, with pairs of up to 15 in size; dx one rounding of up to 25; dw, of up to 2100 terms,
      // the random walk of their roundings: six standard deviations are less than 6 · sqrt(2100) · 2^-8 · 2.
      const double unit = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-20;
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(got.outputs[0][i], y[i], 3 * unit * 15) << i;
        ASSERT_NEAR(got.gradients[0][i], dx[i], unit * 25) << i;
      }
      for (size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(got.gradients[1][i], dw[i], 275 * unit * 2) << i;
    }
  }
}

TEST(QkNormRope, EveryInstructionSetMatchesTheReference) {
  if (test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "instruction sets are of CPUs";
  for (const Isa isa : supported_isas()) {
    SCOPED_TRACE(name_of(isa));
    const ForcedIsa forced(isa);
    for (const RotaryLayout& layout : {RotaryLayout{}, RotaryLayout{.offset = 8, .interleaved = true}}) {
      const RopeShape s{9, 2, 40, 32, true, layout};
      const OpCase op_case = rope_case(s, std::make_shared<RopeFixture>(s, packed_positions(s.tokens)));
      expect_matches_reference(op_case, DType::kF32, 1e-5);
      expect_matches_reference(op_case, DType::kBF16, 4.0 * 0x1p-9);
    }
  }
}

TEST(QkNormRope, AFrozenWeightGetsNoGradient) {
  const RopeShape s{5, 2, 8, 8, true};
  OpCase op_case = rope_case(s, std::make_shared<RopeFixture>(s, packed_positions(s.tokens)));
  op_case.weights[0].differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 1e-5);
}

TEST(QkNormRope, GradientsOfTwoUsesAdd) {
  for (const RopeShape& s : {RopeShape{5, 3, 64, 64, true}, RopeShape{5, 2, 24, 16, false},
                             RopeShape{5, 2, 96, 32, false, {.offset = 64, .interleaved = true}}}) {
    OpCase twice = rope_case(s, std::make_shared<RopeFixture>(s, packed_positions(s.tokens)));
    twice.op = [once = twice.op](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& weights) {
      return std::vector<Var>{once(tape, in, weights)[0], once(tape, in, weights)[0]};
    };
    twice.reference = [once = twice.reference](const std::vector<Values>& a) {
      return std::vector<Values>{once(a)[0], once(a)[0]};
    };
    expect_matches_reference(twice, DType::kF32, 1e-5);
    expect_matches_reference(twice, DType::kBF16, 5.0 * 0x1p-9);  // the sum of two gradients is rounded once more
  }
}

TEST(QkNormRope, PositionZeroOnlyNormalises) {
  const RopeShape s{2, 1, 8, 8, false};
  const OpCase op_case = rope_case(s, std::make_shared<RopeFixture>(s, std::vector<int32_t>{0, 0}));
  EXPECT_EQ(testing::run_op(op_case, {}).outputs[0], testing::rounded(op_case.inputs[0].values, DType::kF32));
}

TEST(QkNormRope, APositionBeyondTheTableIsAnError) {
  const RopeShape s{2, 1, 8, 8, false};
  const auto fixture = std::make_shared<RopeFixture>(s, std::vector<int32_t>{0, 4});
  const int32_t positions[] = {0, 5};
  copy_from_host(fixture->positions, positions, sizeof(positions));
  if (test_device().kind == DeviceKind::kCpu) {
    EXPECT_ANY_THROW(testing::run_op(rope_case(s, fixture), {}));
    return;
  }
  const Values y = testing::run_op(rope_case(s, fixture), {}).outputs[0];
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i >= 8) << i;
}

}  // namespace
}  // namespace hone
