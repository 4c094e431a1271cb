#include "ops/causal_conv/causal_conv.h"

#include <cmath>

#include "core/cpu/thread_pool.h"
#include "ops/packed_testing.h"

namespace hone {
namespace {

using testing::OpCase;
using Packed = testing::PackedDocuments;
using testing::TestTensor;
using testing::Values;

/// `bias` may be null.
Values convolved(const Values& x, const Values& w, const Values* bias, int64_t channels,
                 const std::vector<int32_t>& offsets) {
  const int64_t taps = static_cast<int64_t>(w.size()) / channels;
  Values y(x.size());
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    for (int64_t t = offsets[n]; t < offsets[n + 1]; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        double z = bias == nullptr ? 0 : (*bias)[static_cast<size_t>(c)];
        for (int64_t j = 0; j < taps; ++j) {
          const int64_t from = t - (taps - 1) + j;
          if (from >= offsets[n])
            z += w[static_cast<size_t>(c * taps + j)] * x[static_cast<size_t>(from * channels + c)];
        }
        y[static_cast<size_t>(t * channels + c)] = z / (1 + std::exp(-z));
      }
    }
  }
  return y;
}

OpCase conv_case(const Packed& packed, int64_t channels, int64_t taps, bool bias = false) {
  testing::Argument weight = testing::random_argument({channels, 1, taps}, 2);
  weight.takes_narrow_gradient = true;
  std::vector<testing::Argument> weights = {weight};
  if (bias) weights.push_back(testing::random_argument({channels}, 3));
  return {.inputs = {testing::random_argument({packed.tokens(), channels}, 1)},
          .weights = weights,
          .op =
              [packed](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
                Weight* of_channels = w.size() > 1 ? w[1] : nullptr;
                return std::vector<Var>{causal_conv(tape, in[0], *w[0], of_channels, packed.sequences)};
              },
          .reference =
              [packed, channels, bias](const std::vector<Values>& a) {
                return std::vector<Values>{convolved(a[0], a[1], bias ? &a[2] : nullptr, channels, packed.offsets)};
              }};
}

TEST(CausalConv, MatchesTheReferenceAndItsGradients) {
  // float32: sums of 4 products, and dw over up to 150 rows; SiLU's exponential has an error of 2^-22. bfloat16 rounds
  // y and dx once, by 2^-9 of the element.
  const std::vector<std::vector<int>> documents = {{1}, {3}, {65}, {2, 1, 0, 4, 70}, {64, 64, 3}, {1, 1, 1, 1, 1}};
  for (const auto& lengths : documents) {
    for (const auto& [channels, taps] : {std::pair{1, 4}, {7, 4}, {8, 3}, {3, 1}}) {
      const OpCase op_case = conv_case(Packed(lengths), channels, taps);
      expect_matches_reference(op_case, DType::kF32, 4e-6);
      expect_matches_reference(op_case, DType::kBF16, 0x1p-8);
    }
  }
}

TEST(CausalConv, AddsABias) {
  for (const auto& lengths : std::vector<std::vector<int>>{{1}, {2, 1, 0, 4, 70}, {64, 64, 3}}) {
    for (const auto& [channels, taps] : {std::pair{7, 4}, {8, 3}}) {
      const OpCase op_case = conv_case(Packed(lengths), channels, taps, true);
      expect_matches_reference(op_case, DType::kF32, 4e-6);
      expect_matches_reference(op_case, DType::kBF16, 0x1p-8);
    }
  }
  OpCase frozen = conv_case(Packed({4, 5}), 8, 4, true);
  frozen.weights[0].differentiable = false;
  expect_matches_reference(frozen, DType::kF32, 4e-6);
}

TEST(CausalConv, ManyChannelsAndManyShortDocuments) {
  std::vector<int> lengths(500);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int>(i % 7);
  const Packed packed(lengths);
  for (const int64_t channels : {132, 300}) {
    const OpCase op_case = conv_case(packed, channels, 4);
    const testing::OpResult got = run_op(op_case, {});
    const Values want =
        convolved(op_case.inputs[0].values, op_case.weights[0].values, nullptr, channels, packed.offsets);
    // The run rounds the inputs above to float32, an error as large as the op's own.
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got.outputs[0][i], want[i], 1e-5) << i;
  }
}

TEST(CausalConv, DocumentsDoNotSeeEachOther) {
  const Packed packed({5, 9, 70});
  OpCase op_case = conv_case(packed, 6, 4);
  const testing::OpResult before = run_op(op_case, {});
  for (size_t i = 5 * 6; i < 14 * 6; ++i) op_case.inputs[0].values[i] += 3;  // the whole second document
  const testing::OpResult after = run_op(op_case, {});
  for (size_t i = 0; i < before.outputs[0].size(); ++i) {
    if (i < 5 * 6 || i >= 14 * 6) {
      ASSERT_EQ(before.outputs[0][i], after.outputs[0][i]) << i;
    }
  }
}

TEST(CausalConv, AFrozenWeightGetsNoGradientAndTheInputStillDoes) {
  OpCase op_case = conv_case(Packed({4, 5}), 3, 4);
  op_case.weights[0].differentiable = false;
  expect_matches_reference(op_case, DType::kF32, 4e-6);
}

/// Two sequences fed in pieces, one of them starting later in a slot with stale state, give bitwise the same results as
/// one pass.
TEST(CausalConv, APassInPiecesGivesTheSameBits) {
  constexpr int64_t kChannels = 12, kTaps = 4;
  ThreadPool pool(2);
  testing::TestStream stream(pool);
  Arena scratch(testing::test_device(), "scratch");
  const Context context(stream, scratch);
  const auto rows_of = [](uint64_t key, int64_t rows) {
    const Values values = testing::random_argument({rows, kChannels}, key).values;
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> first = rows_of(1, 11), second = rows_of(2, 6), w = rows_of(3, kTaps);
  const TestTensor<float> weight(w, {kChannels, 1, kTaps});
  const TestTensor<float> state(std::vector<float>(2 * 3 * kChannels, std::nanf("")), {2, 3, kChannels});
  scratch.reserve(1 << 20);
  const auto run = [&](const std::vector<float>& x, const std::vector<int>& lengths, const std::vector<int32_t>& past) {
    const Packed packed(lengths);
    const TestTensor<float> input(x, {packed.tokens(), kChannels}), y(x, {packed.tokens(), kChannels});
    std::shared_ptr<TestTensor<int32_t>> known;
    ConvState kept;
    if (!past.empty()) {
      known = std::make_shared<TestTensor<int32_t>>(past, Shape{2});
      kept = {.inputs = state, .lengths = *known};
    }
    causal_conv(context, {.x = input, .w = weight, .y = y, .sequences = packed.sequences, .state = kept});
    stream.synchronize();
    return testing::host_values<float>(y);
  };
  std::vector<float> got_first, got_second;
  int32_t done_first = 0, done_second = 0;
  for (const auto& [a, b] : {std::pair{1, 0}, {2, 0}, {5, 2}, {0, 1}, {3, 3}}) {
    std::vector<float> x(first.begin() + done_first * kChannels, first.begin() + (done_first + a) * kChannels);
    x.insert(x.end(), second.begin() + done_second * kChannels, second.begin() + (done_second + b) * kChannels);
    const std::vector<float> y = run(x, {a, b}, {done_first, done_second});
    got_first.insert(got_first.end(), y.begin(), y.begin() + a * kChannels);
    got_second.insert(got_second.end(), y.begin() + a * kChannels, y.end());
    done_first += a;
    done_second += b;
  }
  EXPECT_EQ(got_first, run(first, {11}, {}));
  EXPECT_EQ(got_second, run(second, {6}, {}));
}

}  // namespace
}  // namespace hone
