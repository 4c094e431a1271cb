#include "ops/moe_experts/moe_experts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "core/cpu/isa_testing.h"
#include "core/cpu/numa_testing.h"
#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"
#include "ops/moe_experts/moe_experts_testing.h"

namespace hone {
namespace {

using testing::test_device;
using testing::TestStream;

using testing::moe_case;
using testing::MoeLora;
using testing::MoeOptions;
using testing::MoeSizes;
using testing::OpCase;
using testing::OpResult;
using testing::spread_routing;
using testing::Values;

/// Chains of two products of at most 67 terms of size 1, forward and backward: 4 · 67 · 2^-24.
constexpr double kFloatTolerance = 2e-5;
/// bfloat16 rounds by at most 2^-8. A path has at most seven roundings of the whole value: on a CPU x Aᵀ, h (once, and
/// once for its adapter), act, w · act, dh, and the result; on a GPU x Aᵀ, h, dout B, dact, dh, rows of dx, and the
/// result; on AMX the same except dact. (If a mask adds a part to dact or dx afterwards, it replaces the rounding of
/// dout B.) A sum of products of both signs may be some three times smaller than the sum of their magnitudes.
constexpr double kBFloat16Tolerance = 7 * 3 * 0x1p-8;

void expect_matches(const MoeSizes& sizes, const MoeOptions& options) {
  SCOPED_TRACE(::testing::Message() << "T " << sizes.tokens << " H " << sizes.hidden << " I " << sizes.intermediate
                                    << " E " << sizes.experts << " k " << sizes.k);
  const OpCase c = moe_case(sizes, options);
  expect_matches_reference(c, DType::kF32, kFloatTolerance);
  expect_matches_reference(c, DType::kBF16, kBFloat16Tolerance);
}

std::vector<int32_t> all_to(int32_t expert, int64_t choices) {
  return std::vector<int32_t>(static_cast<size_t>(choices), expert);
}

TEST(MoeExperts, MatchesTheReferenceAndItsGradients) {
  const MoeSizes sizes[] = {
      {1, 1, 1, 1, 1},                      // all sizes 1
      {7, 5, 3, 5, 2},                      // primes, not a power of two
      {3, 6, 3, 4, 4},                      // every expert for every token; 2I = H
      {5, 4, 4, 3, 1},                      // one expert for each token; I = H
      {3, 1, 5, 3, 2},                      // one hidden feature
      {4, 5, 1, 3, 2},                      // one intermediate feature
      {1, 7, 2, 9, 3},                      // one token, most experts empty
      {2, 2, 67, 2, 2}, {19, 16, 8, 3, 2},  // rows of 16 bytes
      {70, 8, 8, 3, 2},                     // more than one tile of rows for an expert
  };
  for (const MoeSizes& s : sizes) expect_matches(s, {});
}

TEST(MoeExperts, MatchTheReferenceWhereOneExpertTakesAll) {
  expect_matches({7, 5, 3, 4, 1}, {.ids = all_to(2, 7)});
  expect_matches({7, 5, 3, 4, 1}, {.lora = MoeLora::kSplit, .ids = all_to(3, 7)});
}

TEST(MoeExperts, AdaptersMatchTheReference) {
  const MoeSizes sizes[] = {{1, 1, 1, 1, 1}, {7, 5, 3, 5, 2}, {3, 6, 3, 4, 4}, {5, 4, 2, 3, 1}, {19, 16, 8, 3, 2}};
  for (const MoeSizes& s : sizes) {
    for (MoeLora lora : {MoeLora::kSplit, MoeLora::kShared, MoeLora::kDownOnly}) expect_matches(s, {.lora = lora});
  }
}

TEST(MoeExperts, AdaptersWithDropoutMatchTheReferenceWithTheSameMask) {
  for (MoeLora lora : {MoeLora::kSplit, MoeLora::kShared}) {
    expect_matches({7, 5, 6, 5, 2}, {.lora = lora, .dropout = 0.25f});
    expect_matches({19, 16, 8, 3, 2}, {.lora = lora, .dropout = 0.25f});
  }
}

TEST(MoeExperts, BiasesMatchTheReference) {
  // All sizes 1, in float32 only: if a single product and its bias cancel, bfloat16 leaves the rounding of the product,
  // which a GPU rounds before it adds the bias.
  expect_matches_reference(moe_case({1, 1, 1, 1, 1}, {.lora = MoeLora::kShared, .biases = true}), DType::kF32,
                           kFloatTolerance);
  const MoeSizes sizes[] = {{7, 5, 3, 5, 2}, {3, 6, 3, 4, 4}, {1, 7, 2, 9, 3}, {19, 16, 8, 3, 2}};
  for (const MoeSizes& s : sizes) {
    expect_matches(s, {.biases = true});
    expect_matches(s, {.lora = MoeLora::kShared, .base_trained = false, .biases = true, .biases_trained = false});
  }
  expect_matches({7, 5, 3, 4, 1}, {.biases = true, .ids = all_to(2, 7)});
  // Only the biases are trained.
  expect_matches({7, 5, 3, 5, 2},
                 {.base_trained = false, .x_trained = false, .router_weights_trained = false, .biases = true});
}

TEST(MoeExperts, TheClampedActivationMatchesTheReference) {
  const MoeSizes sizes[] = {{1, 1, 1, 1, 1}, {7, 5, 3, 5, 2}, {5, 4, 4, 3, 1}, {1, 7, 2, 9, 3}, {9, 8, 8, 3, 2}};
  for (const MoeSizes& s : sizes) {
    expect_matches(s, {.activation = testing::kClamped});
    for (MoeLora lora : {MoeLora::kNone, MoeLora::kSplit, MoeLora::kShared}) {
      expect_matches(s, {.lora = lora, .biases = true, .activation = testing::kClamped});
    }
  }
  expect_matches({7, 5, 6, 5, 2},
                 {.lora = MoeLora::kSplit, .dropout = 0.25f, .biases = true, .activation = testing::kClamped});
  expect_matches(
      {7, 5, 3, 5, 2},
      {.lora = MoeLora::kDownOnly, .base_trained = false, .x_trained = false, .activation = testing::kClamped});
}

/// Squaring doubles the relative error of h, as an eighth rounding would.
TEST(MoeExperts, OtherActivationsMatchTheReference) {
  const MoeSizes sizes[] = {{1, 1, 1, 1, 1}, {7, 5, 3, 5, 2}, {5, 4, 4, 3, 1}, {1, 7, 2, 9, 3}, {19, 16, 8, 3, 2}};
  for (const auto activation : {testing::kGeglu, testing::kSquaredRelu}) {
    SCOPED_TRACE(MlpActivation{activation}.name());
    for (const MoeSizes& s : sizes) {
      expect_matches(s, {.activation = activation});
      for (MoeLora lora : {MoeLora::kSplit, MoeLora::kShared, MoeLora::kDownOnly}) {
        expect_matches(s, {.lora = lora, .base_trained = false, .activation = activation});
      }
    }
    expect_matches({7, 5, 3, 5, 2}, {.lora = MoeLora::kSplit, .biases = true, .activation = activation});
    expect_matches({7, 5, 6, 5, 2}, {.lora = MoeLora::kShared, .dropout = 0.25f, .activation = activation});
    expect_matches({7, 5, 3, 5, 2}, {.base_trained = false, .router_weights_trained = false, .activation = activation});
    expect_matches({7, 5, 3, 5, 2}, {.base_trained = false, .x_trained = false, .activation = activation});
    for (const Isa isa : supported_isas()) {
      const ForcedIsa forced(isa);
      expect_matches({7, 19, 17, 5, 2}, {.lora = MoeLora::kSplit, .activation = activation});
      if (test_device().kind == DeviceKind::kCuda) continue;
      const MoeSizes wide{5, 64, 64, 3, 2};
      for (const WeightFormat* format : std::initializer_list<const WeightFormat*>{&int8_format(), &nf4_format()}) {
        expect_matches(wide, {.lora = MoeLora::kSplit, .base_format = format, .activation = activation});
      }
    }
  }
}

/// Gathered products forward, the gated activation and its gradient, dx and dw; with adapters on a frozen base, too.
TEST(MoeExperts, TensorCoresServeTheirProducts) {
  const MoeSizes sizes{40, 64, 32, 4, 2};
  testing::expect_tensor_cores(moe_case(sizes, {}), {"experts"}, "experts");
  testing::expect_tensor_cores(moe_case(sizes, {.lora = MoeLora::kSplit, .rank = 8, .base_trained = false}),
                               {"experts"}, "experts with adapters");
  testing::expect_tensor_cores(moe_case(sizes, {.lora = MoeLora::kShared, .rank = 8}), {"experts"},
                               "experts with shared adapters, all trained");
  testing::expect_tensor_cores(moe_case(sizes, {.biases = true, .activation = testing::kClamped}), {"experts"},
                               "experts with biases and the clamped activation");
  for (const auto activation : {testing::kGeglu, testing::kSquaredRelu}) {
    testing::expect_tensor_cores(moe_case(sizes, {.activation = activation}), {"experts"}, "other activations");
  }
}

TEST(MoeExperts, EveryInstructionSetMatchesTheReference) {
  for (const Isa isa : supported_isas()) {
    const ForcedIsa forced(isa);
    expect_matches({7, 19, 17, 5, 2}, {.lora = MoeLora::kDownOnly, .base_trained = false});
  }
}

TEST(MoeExperts, ABaseOfEightBitsMatchesTheReference) {
  if (test_device().kind == DeviceKind::kCuda) GTEST_SKIP() << "for the CPU alone";
  const MoeSizes sizes{5, 64, 64, 3, 2};
  for (const Isa isa : supported_isas()) {
    const ForcedIsa forced(isa);
    expect_matches(sizes, {.lora = MoeLora::kShared, .base_format = &int8_format()});
  }
  expect_matches(sizes, {.base_format = &int8_format(), .biases = true, .biases_trained = false});
  expect_matches(sizes, {.lora = MoeLora::kSplit, .dropout = 0.25f, .base_format = &int8_format()});
  expect_matches({3, 128, 64, 2, 1}, {.base_format = &int8_format(), .ids = all_to(1, 3)});
  expect_matches({2, 64, 192, 70, 2},
                 {.base_format = &int8_format(), .router_weights_trained = false, .activation = testing::kClamped});
}

TEST(MoeExperts, APackedBaseMatchesTheReference) {
  if (test_device().kind == DeviceKind::kCuda) GTEST_SKIP() << "a GPU unpacks a base before the product";
  for (const Isa isa : supported_isas()) {
    const ForcedIsa forced(isa);
    expect_matches({3, 32, 32, 3, 2}, {.lora = MoeLora::kShared, .base_format = &int4_format(32)});
  }
  for (const PackedFormat* format : {&nf4_format(), &fp8_format(), &packed_int8_format()}) {
    expect_matches({7, 19, 17, 5, 2}, {.lora = MoeLora::kSplit, .base_format = format});
  }
  const WeightFormat* const mxfp4 = &mxfp4_format();
  expect_matches({3, 32, 32, 2, 1}, {.base_format = mxfp4, .biases = true, .biases_trained = false});
  expect_matches({2, 64, 32, 70, 2},
                 {.base_format = mxfp4, .router_weights_trained = false, .activation = testing::kClamped});
}

/// Bit for bit, with any instruction set and any number of threads, on sizes that end within tiles and blocks.
TEST(MoeExperts, APackedBaseHasTheBitsOfItsUnpackedValues) {
  if (test_device().kind == DeviceKind::kCuda) GTEST_SKIP() << "a GPU unpacks a base before the product";
  const auto expect_same_bits = [](const MoeSizes& s, MoeOptions options) {
    SCOPED_TRACE(::testing::Message() << options.base_format->name() << " T " << s.tokens << " H " << s.hidden << " I "
                                      << s.intermediate << " E " << s.experts << " lora "
                                      << static_cast<int>(options.lora));
    const OpCase packed = moe_case(s, options);
    options.base_format = &dense_format();
    options.base_trained = false;
    OpCase dense = moe_case(s, options);
    for (size_t i = 0; i < 2; ++i) dense.weights[i].values = packed.weights[i].values;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const OpResult want = run_op(dense, {.dtype = dtype, .threads = 2});
      for (const int threads : {1, 5}) {
        const OpResult got = run_op(packed, {.dtype = dtype, .threads = threads});
        EXPECT_EQ(got.outputs, want.outputs);
        EXPECT_EQ(got.gradients, want.gradients);
      }
    }
  };
  for (const Isa isa : supported_isas()) {
    const ForcedIsa forced(isa);
    for (const PackedFormat* format : packed_formats()) {
      expect_same_bits({41, 640, 128, 3, 2}, {.lora = MoeLora::kSplit, .base_format = format});
      expect_same_bits({19, 128, 256, 5, 2}, {.base_format = format});
    }
    for (const PackedFormat* format : {&int4_format(32), &nf4_format(), &mxfp4_format()}) {
      expect_same_bits({1, 32, 32, 5, 2}, {.base_format = format});      // one token, most experts empty
      expect_same_bits({33, 32, 96, 2, 1}, {.base_format = format});     // strips that do not fill a group
      expect_same_bits({50, 576, 288, 3, 2}, {.base_format = format});   // two blocks of k, the second of few tiles
      expect_same_bits({257, 96, 64, 256, 8}, {.base_format = format});  // many experts with few rows each
    }
    const MoeSizes s{41, 320, 160, 3, 2};
    const WeightFormat* int4 = &int4_format(32);
    expect_same_bits(s, {.lora = MoeLora::kSplit, .base_format = int4, .activation = testing::kSquaredRelu});
    expect_same_bits(s, {.lora = MoeLora::kShared, .base_format = int4, .biases = true, .biases_trained = false});
    expect_same_bits(s, {.lora = MoeLora::kSplit, .dropout = 0.25f, .base_format = int4});
    expect_same_bits(s, {.lora = MoeLora::kDownOnly, .base_format = int4, .x_trained = false});
  }
  if (best_isa() < Isa::kAmx) return;
  const ForcedIsa tiles(Isa::kAmx);
  for (const WeightFormat* format : {&int4_format(32), &int4_format(128)}) {
    expect_same_bits({600, 128, 128, 1, 1}, {.base_format = format});   // more rows than a task takes
    expect_same_bits({530, 2176, 128, 1, 1}, {.base_format = format});  // rows in more tasks than one
    expect_same_bits({70, 13440, 128, 1, 1}, {.base_format = format});  // rows are packed part by part
  }
}

/// An expert's weights of 12 MiB, of which few are dequantised at a time, compared with float32 weights in the same
/// tensors.
TEST(MoeExperts, ExpertsOfEightBitsAreDequantisedInTurn) {
  if (test_device().kind == DeviceKind::kCuda) GTEST_SKIP() << "for the CPU alone";
  const MoeSizes sizes{5, 1024, 1408, 6, 2};
  const OpCase c = moe_case(sizes, {.base_format = &int8_format()});
  OpCase same_values = moe_case(sizes, {.base_trained = false});
  same_values.weights = c.weights;
  const OpResult got = run_op(c, {.dtype = DType::kF32}), want = run_op(same_values, {.dtype = DType::kF32});
  EXPECT_EQ(got.outputs, want.outputs);
  EXPECT_EQ(got.gradients, want.gradients);
}

TEST(MoeExperts, AFrozenBaseGetsNoGradientAndItsAdaptersDo) {
  for (bool x_trained : {true, false}) {
    for (MoeLora lora : {MoeLora::kSplit, MoeLora::kDownOnly}) {
      // If neither x nor an adapter of gate_up is trained, gate_up gets no gradient.
      expect_matches(
          {7, 5, 3, 5, 2},
          {.lora = lora, .base_trained = false, .x_trained = x_trained, .router_weights_trained = x_trained});
    }
  }
}

TEST(MoeExperts, RouterWeightsAloneGetTheirGradient) {
  expect_matches({7, 5, 3, 5, 2}, {.base_trained = false, .x_trained = false});
}

TEST(MoeExperts, WeightsThatAreUsedTwiceAddTheirGradients) {
  OpCase c = moe_case({5, 4, 3, 3, 2}, {.lora = MoeLora::kSplit});
  for (testing::Argument& weight : c.weights) weight.takes_narrow_gradient = false;  // would be rounded twice
  c.op = [once = c.op](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    const Var first = once(tape, in, w)[0];
    return once(tape, {first, in[1]}, w);
  };
  c.reference = [once = c.reference](const std::vector<Values>& a) {
    std::vector<Values> again = a;
    again[0] = once(a)[0];
    return once(again);
  };
  // Values and their errors grow in the second pass.
  expect_matches_reference(c, DType::kF32, 4 * kFloatTolerance);
}

TEST(MoeExperts, ExpertsWithoutTokensGetExactZeros) {
  const MoeSizes s{6, 5, 3, 4, 2};
  std::vector<int32_t> ids;
  for (int i = 0; i < 6; ++i) ids.insert(ids.end(), {0, 3});
  const OpCase c = moe_case(s, {.lora = MoeLora::kSplit, .ids = ids});
  const OpResult result = run_op(c, {.dtype = DType::kF32});
  for (size_t i = c.inputs.size(); i < result.gradients.size(); ++i) {
    const Values& gradient = result.gradients[i];
    const size_t each = gradient.size() / 4;
    for (size_t j = 0; j < gradient.size(); ++j) {
      if (j / each == 1 || j / each == 2) {
        EXPECT_EQ(gradient[j], 0.0);
      }
    }
    EXPECT_TRUE(std::any_of(gradient.begin(), gradient.begin() + static_cast<int64_t>(each),
                            [](double g) { return g != 0.0; }));
  }
}

TEST(MoeExperts, ResultsDoNotDependOnThreadsNorOnRecomputation) {
  // Large enough that products and rows are distributed over threads.
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const OpCase c = moe_case({97, 96, 40, 6, 2}, {.lora = MoeLora::kSplit, .dropout = 0.1f});
    const OpResult want = run_op(c, {.dtype = dtype, .threads = 1});
    for (int threads : {2, 3}) {
      const OpResult got = run_op(c, {.dtype = dtype, .recompute = threads == 3, .threads = threads});
      EXPECT_EQ(got.outputs, want.outputs);
      EXPECT_EQ(got.gradients, want.gradients);
    }
  }
}

TEST(MoeExperts, ResultsDoNotDependOnNumaNodes) {
  if (test_device().kind == DeviceKind::kCuda) GTEST_SKIP() << "for the CPU alone";
  const MoeSizes s{97, 128, 64, 7, 2};
  const std::vector<int32_t> skewed = [&] {  // most rows on the first node
    std::vector<int32_t> ids = spread_routing(s);
    for (size_t choice = 0; choice < ids.size(); choice += 2) ids[choice] = ids[choice + 1] == 0 ? 1 : 0;
    return ids;
  }();
  for (const MoeOptions& options :
       {MoeOptions{.lora = MoeLora::kSplit, .dropout = 0.1f}, MoeOptions{.biases = true, .ids = skewed},
        MoeOptions{.lora = MoeLora::kSplit, .base_format = &int8_format()},
        MoeOptions{.lora = MoeLora::kSplit, .base_trained = false, .ids = skewed}}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const OpCase c = moe_case(s, options);
      const OpResult want = run_op(c, {.dtype = dtype, .threads = 1});
      for (const int nodes : {1, 2, 3, 4}) {
        const StatedNodes stated(nodes);
        const OpResult got = run_op(c, {.dtype = dtype, .threads = 4});
        EXPECT_EQ(got.outputs, want.outputs) << nodes;
        EXPECT_EQ(got.gradients, want.gradients) << nodes;
      }
    }
  }
}

/// A router and its experts; equal logits of all experts make the choice depend on ties. `counts` f32 [E] receives the
/// statistics.
OpCase routed_case(const MoeSizes& s, Tensor counts, Tensor prob_sum, Tensor token_sums) {
  const auto hidden_scale = 0.4;
  OpCase c = {.inputs = {testing::random_argument({s.tokens, s.hidden}, 1)},
              .weights = {testing::random_argument({s.experts, s.hidden}, 2),
                          testing::random_argument({s.experts, 2 * s.intermediate, s.hidden}, 3, hidden_scale),
                          testing::random_argument({s.experts, s.hidden, s.intermediate}, 4, hidden_scale)},
              .op = {},
              .reference = {}};
  // Experts 2 and 3 have the same router weights.
  for (int64_t h = 0; h < s.hidden; ++h) {
    Values& router_weights = c.weights[0].values;
    router_weights[static_cast<size_t>(3 * s.hidden + h)] = router_weights[static_cast<size_t>(2 * s.hidden + h)];
  }
  c.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    if (!tape.context().dry()) {
      tape.context().stream().upload(counts, std::vector<float>(static_cast<size_t>(s.experts)));
    }
    const RoutedTokens routed =
        router(tape, in[0], {.weight = w[0]}, {.top_k = s.k, .statistics = {counts, prob_sum, token_sums}});
    return std::vector<Var>{moe_experts(tape, in[0], routed, {w[1], w[2]})};
  };
  return c;
}

TEST(MoeExperts, RecomputationReplaysTheRoutingAndCountsItOnce) {
  const MoeSizes s{31, 12, 7, 5, 2};
  const Buffer memory(test_device(), 4096);
  const Tensor counts = memory.tensor({s.experts}, DType::kF32),
               prob_sum = memory.tensor({s.experts}, DType::kF32, 512),
               token_sums = memory.tensor({2}, DType::kF32, 1024);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const OpCase c = routed_case(s, counts, prob_sum, token_sums);
    const OpResult want = run_op(c, {.dtype = dtype});
    const OpResult got = run_op(c, {.dtype = dtype, .recompute = true});
    EXPECT_EQ(got.outputs, want.outputs);
    EXPECT_EQ(got.gradients, want.gradients);
    const std::vector<float> count = testing::host_values<float>(counts);
    EXPECT_EQ(std::accumulate(count.begin(), count.end(), 0.0f), static_cast<float>(s.tokens * s.k));
    EXPECT_GE(count[2], count[3]) << "of two experts that are always equal the lower one is chosen first";
  }
}

/// Runs launchers without a tape.
struct Launcher {
  ThreadPool pool{2};
  TestStream stream{pool};
  Arena arena{test_device(), "launcher"};
  Context context{stream, arena};

  Launcher() { arena.reserve(1 << 20); }
  ExpertRows rows(const std::shared_ptr<Tensor>& ids, int64_t experts) {
    const int64_t choices = ids->numel();
    const ExpertRows result{arena.take({experts + 1}, DType::kI64), arena.take({choices}, DType::kI32),
                            arena.take({choices}, DType::kI32), arena.take(ids->shape, DType::kI32)};
    moe_permutation(context, {*ids, result});
    stream.synchronize();
    return result;
  }
};

constexpr int64_t kMaskTokens = 8, kMaskExperts = 4, kMaskFeatures = 64;
constexpr float kMaskDropout = 0.25f;

/// The dropout masks of (sample, expert), where token t belongs to sample samples[t] and goes to experts sample % 4 and
/// (sample + 1) % 4: with x = 1 and lora_a the identity, x Aᵀ is the mask.
std::map<std::pair<int64_t, int64_t>, std::vector<float>> dropout_masks(const std::vector<int64_t>& samples) {
  constexpr int64_t kT = kMaskTokens, kE = kMaskExperts, kF = kMaskFeatures;
  std::vector<int32_t> ids;
  for (int64_t sample : samples) {
    for (int64_t j = 0; j < 2; ++j) ids.push_back(static_cast<int32_t>((sample + j) % kE));
  }
  std::vector<float> identity(static_cast<size_t>(kE * kF * kF));
  for (int64_t i = 0; i < kE * kF; ++i) identity[static_cast<size_t>(i * kF + i % kF)] = 1;
  const auto ids_tensor = testing::shared_tensor<int32_t>({kT, 2}, ids);
  const auto x = testing::shared_tensor<float>({kT, kF}, std::vector<float>(kT * kF, 1.0f));
  const auto weight = testing::shared_tensor<float>({kE, 2, kF}, std::vector<float>(kE * 2 * kF));
  const auto lora_a = testing::shared_tensor<float>({kE, kF, kF}, identity);
  const auto lora_b = testing::shared_tensor<float>({kE, 2, kF}, std::vector<float>(kE * 2 * kF));
  const auto sample_ids = testing::shared_tensor<int64_t>({kT}, samples);
  const auto positions = testing::shared_tensor<int32_t>({kT}, std::vector<int32_t>(kT, 5));
  const testing::TestStruct<StepScalars> scalars;
  Launcher on;
  const ExpertRows rows = on.rows(ids_tensor, kE);
  const Tensor xa = on.arena.take({2 * kT, kF}, DType::kF32), h = on.arena.take({2 * kT, 2}, DType::kF32);
  const Tensor activation = on.arena.take({2 * kT, 1}, DType::kF32);
  moe_gate_up(on.context, {.rows = rows,
                           .x = *x,
                           .weight = {*weight},
                           .adapters = {{.lora_a = *lora_a,
                                         .lora_b = *lora_b,
                                         .out_begin = 0,
                                         .out_count = 2,
                                         .scaling = 1.0f,
                                         .dropout = kMaskDropout,
                                         .stream_id = 3}},
                           .dropout = {scalars.get(), *sample_ids, *positions},
                           .xa = xa,
                           .h = h,
                           .activation = activation});
  const std::vector<float> projected = on.stream.download<float>(xa);
  const std::vector<int32_t> row_of = on.stream.download<int32_t>(rows.row);
  std::map<std::pair<int64_t, int64_t>, std::vector<float>> masks;
  for (size_t choice = 0; choice < ids.size(); ++choice) {
    const float* row = projected.data() + row_of[choice] * kF;
    masks[{samples[choice / 2], ids[choice]}] = {row, row + kF};
  }
  return masks;
}

TEST(MoeExperts, DropoutKeepsItsShareAndFollowsTheSampleNotTheRow) {
  const auto masks = dropout_masks({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(dropout_masks({5, 2, 7, 0, 1, 6, 3, 4}), masks);
  double kept = 0;
  std::set<std::vector<float>> different;
  for (const auto& [row, mask] : masks) {
    kept += std::accumulate(mask.begin(), mask.end(), 0.0);
    different.insert(mask);
  }
  EXPECT_EQ(different.size(), masks.size()) << "each pair of sample and expert has its own mask";
  const double features = 2.0 * kMaskTokens * kMaskFeatures, p = kMaskDropout;
  EXPECT_NEAR(kept / features, 1 - p, 4 * std::sqrt(p * (1 - p) / features));  // four standard deviations
}

/// The rows of experts, from the launcher.
std::vector<std::vector<int64_t>> permutation(Shape shape, const std::vector<int32_t>& ids, int64_t experts) {
  Launcher on;
  const ExpertRows rows = on.rows(testing::shared_tensor<int32_t>(shape, ids), experts);
  std::vector<std::vector<int64_t>> result(1, on.stream.download<int64_t>(rows.offsets));
  for (const Tensor& t : {rows.token, rows.assignment, rows.row}) {
    const std::vector<int32_t> values = on.stream.download<int32_t>(t);
    result.emplace_back(values.begin(), values.end());
  }
  return result;
}

TEST(MoePermutation, SortsChoicesByExpertAndKeepsTheOrderOfTokens) {
  using Rows = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(permutation({3, 2}, {2, 0, 0, 3, 2, 0}, 5), (Rows{{0, 3, 3, 5, 6, 6},     // offsets
                                                              {0, 1, 2, 0, 2, 1},     // token
                                                              {1, 2, 5, 0, 4, 3},     // assignment
                                                              {3, 0, 1, 5, 4, 2}}));  // row
}

/// Over many chunks of the sort, more experts than lanes, and some experts empty.
TEST(MoePermutation, MatchesAStableSort) {
  for (int64_t experts : {int64_t{1}, int64_t{33}, int64_t{384}, int64_t{512}}) {
    for (int64_t tokens : {int64_t{1}, int64_t{171}, int64_t{1300}, int64_t{5000}}) {
      constexpr int64_t kChoices = 3;
      PhiloxSequence random(static_cast<uint64_t>(experts + tokens));
      std::vector<int32_t> ids(static_cast<size_t>(tokens * kChoices));
      for (int32_t& id : ids) {
        // Low experts are chosen more often.
        id = static_cast<int32_t>(random.below(random.below(static_cast<uint64_t>(experts)) + 1));
      }
      std::vector<std::vector<int64_t>> want(4);
      want[0].assign(static_cast<size_t>(experts) + 1, 0);
      for (int32_t id : ids) ++want[0][static_cast<size_t>(id) + 1];
      std::partial_sum(want[0].begin(), want[0].end(), want[0].begin());
      want[2].resize(ids.size());
      std::iota(want[2].begin(), want[2].end(), int64_t{0});
      const auto id_of = [&](int64_t choice) { return ids[static_cast<size_t>(choice)]; };
      std::stable_sort(want[2].begin(), want[2].end(), [&](int64_t a, int64_t b) { return id_of(a) < id_of(b); });
      want[3].resize(ids.size());
      for (size_t row = 0; row < ids.size(); ++row) {
        want[1].push_back(want[2][row] / kChoices);
        want[3][static_cast<size_t>(want[2][row])] = static_cast<int64_t>(row);
      }
      EXPECT_EQ(permutation({tokens, kChoices}, ids, experts), want) << experts << " experts, " << tokens << " tokens";
    }
  }
}

TEST(MoePermutation, RefusesAnExpertThatDoesNotExist) {
  if (test_device().kind == DeviceKind::kCuda) GTEST_SKIP() << "a trap ends all work on the device";
  EXPECT_ANY_THROW(permutation({1, 1}, {5}, 5));
  EXPECT_ANY_THROW(permutation({1, 1}, {-1}, 5));
}

}  // namespace
}  // namespace hone
