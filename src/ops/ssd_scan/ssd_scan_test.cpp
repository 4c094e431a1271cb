#include "ops/ssd_scan/ssd_scan.h"

#include <cmath>

#include "core/cpu/thread_pool.h"
#include "ops/packed_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using Packed = testing::PackedDocuments;
using testing::TestTensor;
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
void expect_slopes(const std::vector<int>& lengths, DType dtype, double tolerance) {
  const OpCase op_case = scan_case(Packed(lengths), kReal);
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
    std::vector<Values> direction;
    for (const Values& values : arguments) direction.emplace_back(values.size());
    const auto count = static_cast<int64_t>(arguments[argument].size());
    direction[argument] = testing::random_argument({count}, 50).values;
    const Values& gradient = got.gradients[argument];
    double along = 0, squares = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      along += gradient[i] * direction[argument][i];
      squares += gradient[i] * gradient[i];
    }
    // The slope along a random direction is about as large as the gradient's norm.
    EXPECT_NEAR(along, slope(op_case, arguments, direction, seeds), 3 * tolerance * std::sqrt(squares))
        << "argument " << argument;
  }
}

TEST(SsdScan, ServesTheSizesOfReleasedModels) {
  for (const auto& lengths : std::vector<std::vector<int>>{{150}, {1, 64, 2, 70}}) {
    SCOPED_TRACE(lengths[0]);
    expect_slopes(lengths, DType::kF32, 1e-5);
    expect_slopes(lengths, DType::kBF16, 0.01);  // results are rounded by 2^-9
  }
}

TEST(SsdScan, DocumentsDoNotSeeEachOther) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const SsdHeads& heads : {kSmall, kReal}) {
      const OpCase all = scan_case(Packed({70, 66, 5}), heads);
      const testing::OpResult packed = run_op(all, {.dtype = dtype});
      OpCase alone = scan_case(Packed({66}), heads);
      for (size_t i = 0; i < 2; ++i) {
        const auto width = static_cast<std::ptrdiff_t>(alone.inputs[i].shape[1]);
        alone.inputs[i].values =
            Values(all.inputs[i].values.begin() + 70 * width, all.inputs[i].values.begin() + 136 * width);
      }
      const testing::OpResult own = run_op(alone, {.dtype = dtype});
      const auto width = static_cast<size_t>(heads.inner());
      for (size_t i = 0; i < own.outputs[0].size(); ++i) {
        ASSERT_EQ(own.outputs[0][i], packed.outputs[0][70 * width + i]) << i;
      }
    }
  }
}

/// The division of work depends on the number of documents; the results of the first two do not.
TEST(SsdScan, TheNumberOfDocumentsChangesNoBits) {
  const auto run = [](int further) {
    std::vector<int> lengths = {70, 130};
    for (int i = 0; i < further; ++i) lengths.push_back(1 + i % 3);
    return run_op(scan_case(Packed(lengths), kReal), {.dtype = DType::kBF16});
  };
  const testing::OpResult alone = run(0);
  for (const int further : {14, 80}) {
    const testing::OpResult packed = run(further);
    const auto expect_begins_with = [&](const Values& values, const Values& first, size_t input) {
      for (size_t i = 0; i < first.size(); ++i) ASSERT_EQ(values[i], first[i]) << further << ", " << input << ", " << i;
    };
    expect_begins_with(packed.outputs[0], alone.outputs[0], 9);
    for (size_t input = 0; input < 2; ++input) {
      // Seeds differ with the number of outputs' rows only behind the first documents.
      expect_begins_with(packed.gradients[input], alone.gradients[input], input);
    }
  }
}

TEST(SsdScan, FiveHundredShortDocuments) {
  std::vector<int> lengths(500);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int>(i % 5);
  const Packed packed(lengths);
  const OpCase op_case = scan_case(packed, kSmall);
  const testing::OpResult got = run_op(op_case, {});
  std::vector<Values> arguments;
  for (const auto* list : {&op_case.inputs, &op_case.weights}) {
    for (const testing::Argument& argument : *list) arguments.push_back(testing::rounded(argument.values, DType::kF32));
  }
  const Values want = scanned(arguments, kSmall, packed.offsets);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.outputs[0][i], want[i], 2e-5) << i;
}

/// Sequences fed in pieces, in a slot with stale state, give bitwise the same results however they are divided, and
/// those of training up to the order of sums.
TEST(SsdScan, APassInPiecesGivesTheSameBits) {
  ThreadPool pool(2);
  testing::TestStream stream(pool);
  Arena scratch(testing::test_device(), "scratch");
  scratch.reserve(16 << 20);
  const Context context(stream, scratch);
  for (const SsdHeads& heads : {kSmall, kGroups, kReal}) {
    const OpCase op_case = scan_case(Packed({75}), heads);
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
    const TestTensor<float> a_log = weight(0), dt_bias = weight(1), d = weight(2);
    const auto run = [&](const std::vector<int64_t>& cuts) {
      const TestTensor<float> state(
          std::vector<float>(static_cast<size_t>(heads.inner() * heads.state_size), std::nanf("")),
          {1, heads.num_heads, heads.state_size, heads.head_dim});
      std::vector<float> result;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const int64_t begin = cuts[i], end = cuts[i + 1];
        const Packed packed({static_cast<int>(end - begin)});
        const TestTensor<int32_t> lengths({static_cast<int32_t>(begin)}, {1});
        const TestTensor<float> xbc = piece(0, begin, end), dt = piece(1, begin, end);
        const TestTensor<float> out(std::vector<float>(static_cast<size_t>((end - begin) * heads.inner())),
                                    {end - begin, heads.inner()});
        ssd_scan(context, {.xbc = xbc,
                           .dt = dt,
                           .a_log = a_log,
                           .dt_bias = dt_bias,
                           .d = d,
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

TEST(SsdScan, FrozenWeightsGetNoGradientAndTheInputsStillDo) {
  OpCase op_case = scan_case(Packed({9, 66}), kSmall);
  for (testing::Argument& weight : op_case.weights) weight.differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 2e-5);
}

}  // namespace
}  // namespace hone
