#include "ops/linear/linear.h"

#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/op_testing.h"
#include "tape/pass_runner.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

using testing::Argument;
using testing::OpCase;
using testing::OpResult;
using testing::Values;

struct Sizes {
  int64_t tokens, in, out, rank = 0;
  bool bias = false;
  float dropout = 0;
};

constexpr float kScaling = 0.5f;
constexpr uint32_t kStreamId = 7;

/// Rows of three packed samples, with the step's seed.
struct Rows {
  uint64_t seed = 42;
  std::vector<int64_t> samples;
  std::vector<int32_t> positions;
  testing::TestStruct<StepScalars> scalars;
  Buffer memory;
  LoraDropoutContext context;

  explicit Rows(int64_t tokens) : memory(test_device(), static_cast<size_t>(tokens) * 12) {
    for (int64_t t = 0; t < tokens; ++t) {
      samples.push_back(t * 3 / tokens + (int64_t{1} << 33));
      positions.push_back(static_cast<int32_t>(t - t * 3 / tokens));
    }
    StepScalars values;
    values.seed = seed;
    scalars.write(values);
    context = {.scalars = scalars.get(),
               .sample_ids = memory.tensor({tokens}, DType::kI64),
               .positions = memory.tensor({tokens}, DType::kI32, static_cast<size_t>(tokens) * 8)};
    copy_from_host(context.sample_ids, samples.data(), context.sample_ids.bytes());
    copy_from_host(context.positions, positions.data(), context.positions.bytes());
  }
};

Values matmul_transposed(const Values& a, const Values& b, size_t k) {
  const size_t m = a.size() / k, n = b.size() / k;
  Values c(m * n, 0.0);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t l = 0; l < k; ++l) c[i * n + j] += a[i * k + l] * b[j * k + l];
    }
  }
  return c;
}

Values dropped(const Values& x, const Sizes& sizes, const Rows& rows) {
  Values result = x;
  const uint64_t key = lora_dropout_key(rows.seed, kStreamId);
  for (int64_t t = 0; t < sizes.tokens; ++t) {
    for (int64_t i = 0; i < sizes.in; ++i) {
      const auto row = static_cast<size_t>(t);
      const auto keep =
          lora_keep(key, sizes.dropout, rows.samples[row], rows.positions[row], static_cast<uint32_t>(i / 4));
      result[static_cast<size_t>(t * sizes.in + i)] *=
          static_cast<double>(keep[static_cast<size_t>(i % 4)]) / (1.0 - static_cast<double>(sizes.dropout));
    }
  }
  return result;
}

/// Weights: w, then bias, then A and B, as there are. The adapter outlives the tape through the shared pointer; `rows`
/// must outlive the case, and may be null where nothing is dropped.
OpCase linear_case(const Sizes& sizes, const Rows* rows = nullptr) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(sizes.in));
  OpCase result;
  result.inputs = {testing::random_argument({sizes.tokens, sizes.in}, 1)};
  result.weights = {testing::random_argument({sizes.out, sizes.in}, 2, scale)};
  result.weights[0].takes_narrow_gradient = true;
  if (sizes.bias) result.weights.push_back(testing::random_argument({sizes.out}, 3));
  if (sizes.rank > 0) {
    result.weights.push_back(testing::random_argument({sizes.rank, sizes.in}, 4, scale));
    result.weights.push_back(testing::random_argument({sizes.out, sizes.rank}, 5));
  }
  const size_t first_lora = sizes.bias ? 2 : 1;
  const auto adapter =
      std::make_shared<Adapter>(Adapter{.scaling = kScaling, .dropout = sizes.dropout, .stream_id = kStreamId});
  result.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    if (sizes.rank > 0) {
      adapter->lora_a = w[first_lora];
      adapter->lora_b = w[first_lora + 1];
    }
    return std::vector<Var>{linear(tape, in[0], *w[0], sizes.bias ? w[1] : nullptr,
                                   sizes.rank > 0 ? adapter.get() : nullptr,
                                   rows != nullptr ? rows->context : LoraDropoutContext{})};
  };
  result.reference = [=](const std::vector<Values>& a) {
    const auto in = static_cast<size_t>(sizes.in), out = static_cast<size_t>(sizes.out);
    Values y = matmul_transposed(a[0], a[1], in);
    for (size_t i = 0; sizes.bias && i < y.size(); ++i) y[i] += a[2][i % out];
    if (sizes.rank > 0) {
      const Values x = sizes.dropout > 0 ? dropped(a[0], sizes, *rows) : a[0];
      const Values xa = matmul_transposed(x, a[first_lora + 1], in);
      const Values delta = matmul_transposed(xa, a[first_lora + 2], static_cast<size_t>(sizes.rank));
      for (size_t i = 0; i < y.size(); ++i) y[i] += static_cast<double>(kScaling) * delta[i];
    }
    return std::vector<Values>{y};
  };
  return result;
}

/// float32: chains of at most 256 products and a few blocks of terms of order 1. bfloat16: y and dx are rounded once,
/// 2^-8, and before that an adapter's part by itself. A GPU, and a CPU with AMX, also round xa and dxa before they
/// are multiplied: 2^-8 of the sum of their terms' sizes, which for the few dozens of random terms here is at most
/// twice the largest sum.
void expect_right(const Sizes& sizes) {
  SCOPED_TRACE(::testing::Message() << "T " << sizes.tokens << " in " << sizes.in << " out " << sizes.out << " r "
                                    << sizes.rank << (sizes.bias ? " bias" : "") << " dropout " << sizes.dropout);
  const Rows rows(sizes.tokens);
  const OpCase op_case = linear_case(sizes, &rows);
  const double adapted = test_device().kind == DeviceKind::kCpu && !gemm_rounds() ? 2 * 0x1p-8 : 4 * 0x1p-8;
  expect_matches_reference(op_case, DType::kF32, 1e-5);
  expect_matches_reference(op_case, DType::kBF16, 1e-5 + (sizes.rank > 0 ? adapted : 0x1p-8));
}

TEST(Linear, MatchesTheReferenceAndItsGradients) {
  for (const bool bias : {false, true}) {
    expect_right({.tokens = 1, .in = 1, .out = 1, .bias = bias});
    expect_right({.tokens = 1, .in = 13, .out = 7, .bias = bias});
    expect_right({.tokens = 29, .in = 11, .out = 19, .bias = bias});
  }
}

TEST(Linear, MatchesTheReferenceWithAnAdapter) {
  for (const float dropout : {0.0f, 0.3f}) {
    expect_right({.tokens = 1, .in = 1, .out = 1, .rank = 1, .dropout = dropout});
    expect_right({.tokens = 17, .in = 13, .out = 5, .rank = 3, .bias = true, .dropout = dropout});
    expect_right({.tokens = 5, .in = 7, .out = 31, .rank = 2, .dropout = dropout});
    expect_right({.tokens = 37, .in = 24, .out = 16, .rank = 4, .bias = true, .dropout = dropout});
  }
}

TEST(Linear, TensorCoresServeAnAdapterWithDropout) {
  const Sizes sizes{.tokens = 40, .in = 64, .out = 48, .rank = 8, .dropout = 0.3f};
  const Rows rows(sizes.tokens);
  testing::expect_tensor_cores(linear_case(sizes, &rows), {"adapters"}, "an adapter with dropout");
}

/// Gradients of weights are sums of 1031 terms of order 1, of which some hundredths are left.
TEST(Linear, DropoutWorksAcrossChunksOfRows) {
  const Sizes sizes{.tokens = 1031, .in = 1, .out = 1, .rank = 1, .dropout = 0.5f};
  const Rows rows(sizes.tokens);
  expect_matches_reference(linear_case(sizes, &rows), DType::kF32, 1e-3);
}

TEST(Linear, FrozenBaseWithATrainedAdapter) {
  OpCase op_case = linear_case({.tokens = 9, .in = 6, .out = 4, .rank = 2, .bias = true});
  op_case.weights[0].differentiable = op_case.weights[1].differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 1e-5);
}

TEST(Linear, BelowTheFirstAdapterNoInputGradientIsComputed) {
  OpCase op_case = linear_case({.tokens = 9, .in = 6, .out = 4, .rank = 2});
  op_case.inputs[0].differentiable = op_case.weights[0].differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 1e-5);
}

TEST(Linear, OnlyOneHalfOfAnAdapterMayBeTrained) {
  for (const size_t frozen : {1, 2}) {
    OpCase op_case = linear_case({.tokens = 9, .in = 6, .out = 4, .rank = 2});
    op_case.weights[frozen].differentiable = false;
    expect_matches_reference(op_case, DType::kF32, 1e-5);
  }
}

TEST(Linear, UsesOfOneWeightAddUp) {
  OpCase op_case = linear_case({.tokens = 5, .in = 7, .out = 7, .rank = 2, .bias = true});
  op_case.weights[0].takes_narrow_gradient = false;  // would be rounded twice
  const auto once = op_case.op;
  const auto reference = op_case.reference;
  op_case.op = [once](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    return once(tape, {once(tape, in, w)[0]}, w);
  };
  op_case.reference = [reference](std::vector<Values> a) {
    a[0] = reference(a)[0];
    return reference(a);
  };
  expect_matches_reference(op_case, DType::kF32, 1e-5);
}

/// Values that bfloat16 holds give the same bits, whichever of the formats holds them.
TEST(Linear, TakesWeightsAndAdaptersOfEitherFormat) {
  const OpCase op_case = linear_case({.tokens = 11, .in = 9, .out = 5, .rank = 3, .bias = true});
  const OpResult want = run_op(op_case, {.dtype = DType::kBF16});
  for (size_t wide = 0; wide < op_case.weights.size(); ++wide) {
    Argument argument = op_case.weights[wide];
    argument.values = testing::rounded(argument.values, DType::kBF16);
    std::shared_ptr<testing::TestWeight> weight;
    OpCase mixed = op_case;
    mixed.op = [&](Tape& tape, const std::vector<Var>& in, std::vector<Weight*> w) {
      weight = std::make_shared<testing::TestWeight>(argument, DType::kF32);
      w[wide] = weight.get();
      return op_case.op(tape, in, w);
    };
    const OpResult got = run_op(mixed, {.dtype = DType::kBF16});
    EXPECT_EQ(got.outputs, want.outputs) << "weight " << wide;
    EXPECT_EQ(got.gradients[0], want.gradients[0]) << "weight " << wide;
    EXPECT_EQ(weight->gradient(), want.gradients[1 + wide]) << "weight " << wide;
  }
}

TEST(Linear, DropoutKeepsItsShareAndDependsOnWhatItIsKeyedBy) {
  const auto kept = [](uint64_t key, int64_t sample, int32_t position) {
    std::vector<float> ones(20000, 1.0f), result(ones.size());
    lora_drop_row(key, 0.25f, sample, position, ones.data(), result.data(), static_cast<int64_t>(ones.size()));
    return result;
  };
  const uint64_t key = lora_dropout_key(1, 2);
  const std::vector<float> first = kept(key, 3, 4);
  double sum = 0;
  for (float value : first) sum += static_cast<double>(value);
  EXPECT_NEAR(sum / 20000, 0.75, 5 * std::sqrt(0.75 * 0.25 / 20000)) << "five standard deviations";
  EXPECT_EQ(kept(key, 3, 4), first);
  EXPECT_NE(kept(lora_dropout_key(2, 2), 3, 4), first) << "seed";
  EXPECT_NE(kept(lora_dropout_key(1, 3), 3, 4), first) << "adapter";
  EXPECT_NE(kept(lora_dropout_key(1, 2, 1), 3, 4), first) << "expert";
  EXPECT_NE(kept(key, 3 + (int64_t{1} << 40), 4), first) << "sample";
  EXPECT_NE(kept(key, 3, 5), first) << "position";
}

/// Evaluation sees no dropout.
TEST(Linear, DropoutActsOnlyInTraining) {
  const Sizes sizes{.tokens = 6, .in = 8, .out = 3, .rank = 2, .dropout = 0.9f};
  const Rows rows(sizes.tokens);
  Sizes without = sizes;
  without.dropout = 0;
  const OpCase op_case = linear_case(sizes, &rows);
  const Values want = run_op(linear_case(without), {}).outputs[0];
  std::vector<std::unique_ptr<testing::TestWeight>> weights;
  std::vector<Weight*> pointers;
  for (const Argument& argument : op_case.weights) {
    weights.push_back(std::make_unique<testing::TestWeight>(argument, DType::kF32));
    pointers.push_back(weights.back().get());
  }
  ThreadPool pool(2);
  TestStream stream(pool);
  PassRunner passes(stream);
  TapePlan plan;
  const testing::TestTensor<float> x({op_case.inputs[0].values.begin(), op_case.inputs[0].values.end()}, {6, 8});
  const auto run = [&] {
    Tape tape = passes.tape(plan);
    tape.block([&] {
      const Var y = op_case.op(tape, {tape.input(x)}, pointers)[0];
      if (passes.context().dry()) return;
      const std::vector<float> got = stream.download<float>(tape.data(y));
      EXPECT_EQ(Values(got.begin(), got.end()), want);
    });
  };
  passes.measure(run);
  passes.reserve();
  run();
}

}  // namespace
}  // namespace hone
