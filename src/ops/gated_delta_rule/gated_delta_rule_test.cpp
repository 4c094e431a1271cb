#include "ops/gated_delta_rule/gated_delta_rule.h"

#include <cmath>

#include "core/cpu/thread_pool.h"
#include "ops/packed_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using Packed = testing::PackedDocuments;
using testing::TestTensor;
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

/// The reference's derivative of f along `direction` at the arguments.
double slope(const OpCase& op_case, const std::vector<Values>& arguments, const std::vector<Values>& direction,
             const std::vector<Values>& seeds) {
  constexpr double kStep = 1e-5;
  const auto objective = [&](double step) {
    std::vector<Values> moved = arguments;
    for (size_t i = 0; i < moved.size(); ++i) {
      for (size_t j = 0; j < moved[i].size(); ++j) moved[i][j] += step * direction[i][j];
    }
    const Values out = op_case.reference(moved)[0];
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += seeds[0][i] * out[i];
    return sum;
  };
  return (objective(kStep) - objective(-kStep)) / (2 * kStep);
}

/// The sizes of released models, with too many gradients for central differences of each: compares derivatives along
/// random directions of one argument at a time.
void expect_slopes(const std::vector<int>& lengths, const DeltaHeads& heads, DType dtype, double tolerance) {
  const Packed packed(lengths);
  const OpCase op_case = delta_case(packed, heads);
  const testing::OpResult got = run_op(op_case, {.dtype = dtype});
  std::vector<Values> arguments;
  for (const auto* list : {&op_case.inputs, &op_case.weights}) {
    for (const testing::Argument& argument : *list) arguments.push_back(testing::rounded(argument.values, dtype));
  }
  const Values want = op_case.reference(arguments)[0];
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got.outputs[0][i] - want[i]) * (got.outputs[0][i] - want[i]);
    size += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(size)) << "out";
  const std::vector<Values> seeds = testing::output_seeds(got.outputs, dtype);
  for (size_t argument = 0; argument < arguments.size(); ++argument) {
    for (uint64_t direction_key = 0; direction_key < 2; ++direction_key) {
      std::vector<Values> direction;
      for (const Values& values : arguments) direction.emplace_back(values.size());
      const auto count = static_cast<int64_t>(arguments[argument].size());
      direction[argument] = testing::random_argument({count}, 50 + direction_key).values;
      const Values& gradient = got.gradients[argument];
      double along = 0, squares = 0;
      for (size_t i = 0; i < gradient.size(); ++i) {
        along += gradient[i] * direction[argument][i];
        squares += gradient[i] * gradient[i];
      }
      // The slope along a random direction is about as large as the gradient's norm.
      EXPECT_NEAR(along, slope(op_case, arguments, direction, seeds), 3 * tolerance * std::sqrt(squares))
          << "argument " << argument << ", direction " << direction_key;
    }
  }
}

TEST(GatedDeltaRule, ServesTheSizesOfReleasedModels) {
  for (const auto& lengths : std::vector<std::vector<int>>{{150}, {1, 64, 2, 70}}) {
    SCOPED_TRACE(lengths[0]);
    expect_slopes(lengths, kReal, DType::kF32, 1e-5);
    // On a GPU's tensor cores the operands of some ten consecutive products are rounded by 2^-9 each.
    expect_slopes(lengths, kReal, DType::kBF16, 0.01);
  }
}

TEST(GatedDeltaRule, TensorCoresServeTheHeadsOfReleasedModels) {
  testing::expect_tensor_cores(delta_case(Packed({130, 5}), kReal), {"delta rule"}, "delta rule");
}

TEST(GatedDeltaRule, DocumentsDoNotSeeEachOther) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const DeltaHeads& heads : {kSmall, kReal}) {
      const testing::OpResult packed = run_op(delta_case(Packed({70, 66, 5}), heads), {.dtype = dtype});
      OpCase alone = delta_case(Packed({66}), heads);
      const OpCase all = delta_case(Packed({70, 66, 5}), heads);
      for (size_t i = 0; i < 3; ++i) {
        const auto width = static_cast<std::ptrdiff_t>(alone.inputs[i].shape[1]);
        alone.inputs[i].values =
            Values(all.inputs[i].values.begin() + 70 * width, all.inputs[i].values.begin() + 136 * width);
      }
      const testing::OpResult own = run_op(alone, {.dtype = dtype});
      const auto width = static_cast<size_t>(heads.num_value_heads * heads.value_dim);
      for (size_t i = 0; i < own.outputs[0].size(); ++i) {
        ASSERT_EQ(own.outputs[0][i], packed.outputs[0][70 * width + i]) << i;
      }
    }
  }
}

/// The division of work depends on the number of documents; the results of the first two do not.
TEST(GatedDeltaRule, TheNumberOfDocumentsChangesNoBits) {
  const auto run = [](int further) {
    std::vector<int> lengths = {70, 130};
    for (int i = 0; i < further; ++i) lengths.push_back(1 + i % 3);
    OpCase op_case = delta_case(Packed(lengths), kReal);
    return run_op(op_case, {.dtype = DType::kBF16});
  };
  const testing::OpResult alone = run(0);
  for (const int further : {14, 80}) {
    const testing::OpResult packed = run(further);
    const auto expect_begins_with = [&](const Values& values, const Values& first, size_t input) {
      for (size_t i = 0; i < first.size(); ++i) ASSERT_EQ(values[i], first[i]) << further << ", " << input << ", " << i;
    };
    expect_begins_with(packed.outputs[0], alone.outputs[0], 9);
    for (size_t input = 0; input < 3; ++input) {
      expect_begins_with(packed.gradients[input], alone.gradients[input], input);
    }
  }
}

TEST(GatedDeltaRule, FiveHundredShortDocuments) {
  std::vector<int> lengths(500);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int>(i % 5);
  const Packed packed(lengths);
  const OpCase op_case = delta_case(packed, kSmall);
  const testing::OpResult got = run_op(op_case, {});
  std::vector<Values> arguments;
  for (const auto* list : {&op_case.inputs, &op_case.weights}) {
    for (const testing::Argument& argument : *list) arguments.push_back(testing::rounded(argument.values, DType::kF32));
  }
  const Values want = delta_rule(arguments, kSmall, packed.offsets);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.outputs[0][i], want[i], 2e-5) << i;
}

/// Sequences fed in pieces, in a slot with stale state, give bitwise the same results however they are divided, and
/// those of training up to the order of sums.
TEST(GatedDeltaRule, APassInPiecesGivesTheSameBits) {
  ThreadPool pool(2);
  testing::TestStream stream(pool);
  Arena scratch(testing::test_device(), "scratch");
  scratch.reserve(16 << 20);
  const Context context(stream, scratch);
  const Packed whole({75});
  for (const DeltaHeads& heads : {kSmall, kReal}) {
    const OpCase op_case = delta_case(whole, heads);
    const auto piece = [&](size_t input, int64_t begin, int64_t end) {
      const auto width = static_cast<std::ptrdiff_t>(op_case.inputs[input].shape[1]);
      const Values& values = op_case.inputs[input].values;
      return TestTensor<float>(std::vector<float>(values.begin() + begin * width, values.begin() + end * width),
                               {end - begin, width});
    };
    const auto weight = [&](size_t i) {
      const Values& values = op_case.weights[i].values;
      return TestTensor<float>(std::vector<float>(values.begin(), values.end()), op_case.weights[i].shape);
    };
    const TestTensor<float> a_log = weight(0), dt_bias = weight(1);
    const int64_t width = heads.num_value_heads * heads.value_dim, state_size = width * heads.key_dim;
    const auto run = [&](const std::vector<int64_t>& cuts) {
      const TestTensor<float> state(std::vector<float>(static_cast<size_t>(state_size), std::nanf("")),
                                    {1, heads.num_value_heads, heads.key_dim, heads.value_dim});
      std::vector<float> result;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const int64_t begin = cuts[i], end = cuts[i + 1];
        const Packed packed({static_cast<int>(end - begin)});
        const TestTensor<int32_t> lengths({static_cast<int32_t>(begin)}, {1});
        const TestTensor<float> qkv = piece(0, begin, end), a = piece(1, begin, end), b = piece(2, begin, end);
        const TestTensor<float> out(std::vector<float>(static_cast<size_t>((end - begin) * width)),
                                    {end - begin, width});
        gated_delta_rule(context, {.qkv = qkv,
                                   .a = a,
                                   .b = b,
                                   .a_log = a_log,
                                   .dt_bias = dt_bias,
                                   .out = out,
                                   .heads = heads,
                                   .sequences = packed.sequences,
                                   .state = {.s = state, .lengths = lengths}});
        stream.synchronize();
        for (const float value : testing::host_values<float>(out)) result.push_back(value);
      }
      return result;
    };
    const std::vector<float> once = run({0, 75});
    EXPECT_EQ(run({0, 1, 2, 40, 75}), once);
    EXPECT_EQ(run({0, 64, 74, 75}), once);
    const testing::OpResult training = run_op(op_case, {});
    double largest = 0;
    for (const double value : training.outputs[0]) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(once[i], training.outputs[0][i], 2e-5 * largest) << i;
  }
}

TEST(GatedDeltaRule, FrozenGatesGetNoGradientAndTheInputsStillDo) {
  OpCase op_case = delta_case(Packed({9, 66}), kSmall);
  for (testing::Argument& weight : op_case.weights) weight.differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 2e-5);
}

}  // namespace
}  // namespace hone
