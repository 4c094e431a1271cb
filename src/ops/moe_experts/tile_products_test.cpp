// Compares experts on AMX with the same experts on AVX-512, which moe_experts_test.cpp compares with a float64
// reference.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "core/cpu/isa_testing.h"
#include "core/cpu/numa_testing.h"
#include "core/cpu/thread_pool.h"
#include "formats/tiled_weights.h"
#include "kernels/op_testing.h"
#include "ops/linear/linear.h"
#include "ops/moe_experts/moe_experts_testing.h"
#include "ops/random_fill/random_fill.h"

namespace hone {
namespace {

using testing::moe_case;
using testing::MoeLora;
using testing::MoeOptions;
using testing::MoeSizes;
using testing::OpCase;
using testing::OpResult;
using testing::Values;

/// Relative to the largest value: both have the roundings counted in moe_experts_test.cpp, at different points.
constexpr double kTolerance = 2 * 7 * 3 * 0x1p-8;
/// Relative to the root mean square of the differences, where single roundings average out: 2^-8 for each of two paths
/// of seven roundings that add as squares.
constexpr double kMeanTolerance = 6 * 0x1p-8;
/// Additional error of rounding rows to 8 bits. Activations are products of two normal numbers, of which among a
/// thousand some are 10 times their root mean square: rounding has an error of 10 / 127 / sqrt(12) of that. A path has
/// two such roundings, which add as squares.
constexpr double kInt8MeanTolerance = 1.4142 * 10.0 / 127.0 / 3.4641;

OpResult run_on(Isa isa, const OpCase& c, int threads = 2) {
  const ForcedIsa forced(isa);
  return run_op(c, {.dtype = DType::kBF16, .threads = threads});
}

void expect_close(const std::vector<Values>& got, const std::vector<Values>& want, double mean_tolerance,
                  const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size());
    double largest = 1e-3, worst = 0, squares = 0, difference_squares = 0;
    for (size_t j = 0; j < got[i].size(); ++j) {
      largest = std::max(largest, std::abs(want[i][j]));
      const double difference = std::abs(got[i][j] - want[i][j]);
      worst = std::isfinite(difference) ? std::max(worst, difference) : HUGE_VAL;
      squares += want[i][j] * want[i][j];
      difference_squares += difference * difference;
    }
    EXPECT_LE(worst, kTolerance * largest) << what << " " << i;
    EXPECT_LE(std::sqrt(difference_squares), mean_tolerance * std::sqrt(squares) + 1e-6) << what << " " << i;
  }
}

class TileProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::test_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "a kernel of CPUs";
    if (best_isa() < Isa::kAmx) GTEST_SKIP() << "this machine has no AMX";
  }

  void expect_matches_vectors(const MoeSizes& sizes, const MoeOptions& options) {
    SCOPED_TRACE(::testing::Message() << "T " << sizes.tokens << " H " << sizes.hidden << " I " << sizes.intermediate
                                      << " E " << sizes.experts << " k " << sizes.k);
    const OpCase c = moe_case(sizes, options);
    const OpResult want = run_on(Isa::kAvx512, c), got = run_on(Isa::kAmx, c);
    const double mean_tolerance = kMeanTolerance + (options.base_format == &int8_format() ? kInt8MeanTolerance : 0);
    expect_close(got.outputs, want.outputs, mean_tolerance, "output");
    expect_close(got.gradients, want.gradients, mean_tolerance, "gradient");
  }
};

TEST_F(TileProducts, MatchTheReference) {
  testing::expect_matches_reference(moe_case({3, 32, 32, 3, 2}, {.lora = MoeLora::kSplit}), DType::kBF16,
                                    7 * 3 * 0x1p-8);
}

TEST_F(TileProducts, MatchVectorsOnAwkwardSizes) {
  const MoeSizes sizes[] = {
      {1, 32, 32, 5, 2},     // one token, most experts empty
      {19, 64, 32, 3, 2},    // less than a tile of rows
      {33, 32, 96, 2, 1},    // one row more than a block
      {50, 288, 160, 3, 2},  // two blocks of k, the second one tile deep; strips that do not fill a group
      {70, 544, 288, 2, 2},  // three blocks of k, and two in the second product
      {600, 64, 32, 1, 1},   // more rows than a task takes
      {257, 96, 64, 256, 8}  // many experts with few rows each
  };
  for (const MoeSizes& s : sizes) {
    expect_matches_vectors(s, {});
    expect_matches_vectors(s, {.lora = MoeLora::kSplit, .base_trained = false});
  }
}

TEST_F(TileProducts, MatchVectorsWithAdaptersBiasesAndEachActivation) {
  const MoeSizes s{37, 96, 64, 5, 2};
  for (MoeLora lora : {MoeLora::kNone, MoeLora::kSplit, MoeLora::kShared, MoeLora::kDownOnly}) {
    expect_matches_vectors(s, {.lora = lora, .biases = true});
    // Few values, so that a limit is well between two of them: the derivative jumps there.
    expect_matches_vectors({2, 32, 32, 2, 1},
                           {.lora = lora, .biases = lora == MoeLora::kSplit, .activation = testing::kClamped});
    expect_matches_vectors(s, {.lora = lora, .dropout = lora == MoeLora::kNone ? 0.0f : 0.25f});
    for (const auto activation : {testing::kGeglu, testing::kSquaredRelu}) {
      expect_matches_vectors(s, {.lora = lora, .activation = activation});
      expect_matches_vectors({37, 64, 96, 5, 2}, {.lora = lora, .biases = true, .activation = activation});
      expect_matches_vectors({41, 128, 64, 3, 2},
                             {.lora = lora, .base_format = &int8_format(), .activation = activation});
    }
  }
}

/// Ranks of one tile, of several, of a partial one, and more than a block of k.
TEST_F(TileProducts, MatchVectorsWithEachRank) {
  for (int64_t rank : {1, 8, 16, 20, 64, 516}) {
    for (MoeLora lora : {MoeLora::kSplit, MoeLora::kShared}) {
      expect_matches_vectors({41, 320, 64, 3, 2}, {.lora = lora, .rank = rank, .base_trained = false});
    }
  }
}

TEST_F(TileProducts, MatchVectorsWhateverIsTrained) {
  const MoeSizes s{37, 96, 64, 5, 2};
  for (bool x_trained : {false, true}) {
    for (bool router_weights_trained : {false, true}) {
      for (MoeLora lora : {MoeLora::kNone, MoeLora::kSplit, MoeLora::kDownOnly}) {
        expect_matches_vectors(s, {.lora = lora,
                                   .base_trained = lora == MoeLora::kNone,
                                   .x_trained = x_trained,
                                   .router_weights_trained = router_weights_trained});
      }
    }
  }
}

TEST_F(TileProducts, MatchVectorsWhereOneExpertTakesAll) {
  std::vector<int32_t> ids(530, 2);
  expect_matches_vectors({530, 96, 64, 4, 1}, {.lora = MoeLora::kSplit, .ids = ids});
}

TEST_F(TileProducts, DoNotDependOnThreadsNorOnNumaNodes) {
  // Large enough that threads get different parts.
  for (const MoeOptions& options :
       {MoeOptions{}, {.lora = MoeLora::kSplit}, {.lora = MoeLora::kSplit, .base_format = &int8_format()}}) {
    const OpCase c = moe_case({300, 320, 256, 3, 2}, options);
    const OpResult want = run_on(Isa::kAmx, c, 1);
    for (int threads : {2, 5}) {
      for (int nodes : {1, 2, 3}) {
        const StatedNodes stated(nodes);
        const OpResult got = run_on(Isa::kAmx, c, threads);
        EXPECT_EQ(got.outputs, want.outputs);
        EXPECT_EQ(got.gradients, want.gradients);
      }
    }
  }
}

/// Results are bitwise equal whether tiles are packed at each product or once.
TEST_F(TileProducts, OfWeightsInTilesHaveTheBitsOfDenseOnes) {
  const auto expect_same_bits = [](const MoeSizes& s, MoeOptions options) {
    SCOPED_TRACE(::testing::Message() << "T " << s.tokens << " H " << s.hidden << " I " << s.intermediate << " E "
                                      << s.experts << " k " << s.k << " lora " << static_cast<int>(options.lora));
    options.base_trained = false;
    const OpResult want = run_on(Isa::kAmx, moe_case(s, options), 2);
    options.base_format = &tile_format();
    const OpResult got = run_on(Isa::kAmx, moe_case(s, options), 2);
    EXPECT_EQ(got.outputs, want.outputs);
    EXPECT_EQ(got.gradients, want.gradients);
  };
  const MoeSizes sizes[] = {
      {1, 64, 32, 5, 2},      // one token, most experts empty
      {33, 64, 96, 2, 1},     // one row more than a block; strips that do not fill a group
      {50, 576, 288, 3, 2},   // two blocks of k in all products but one
      {600, 128, 64, 1, 1},   // more rows than a task takes
      {530, 2112, 64, 1, 1},  // rows in more tasks than one
      {70, 13376, 32, 1, 1},  // a product so deep that rows are packed part by part
      {257, 128, 64, 256, 8}  // many experts with few rows each
  };
  for (const MoeSizes& s : sizes) {
    expect_same_bits(s, {});
    expect_same_bits(s, {.lora = MoeLora::kSplit});
  }
  const MoeSizes s{41, 576, 160, 3, 2};
  expect_same_bits(s, {.lora = MoeLora::kShared, .biases = true, .biases_trained = false});
  expect_same_bits(s, {.lora = MoeLora::kSplit, .dropout = 0.25f});
  expect_same_bits(s, {.lora = MoeLora::kDownOnly, .x_trained = false});
  expect_same_bits(s, {.router_weights_trained = false, .activation = testing::kClamped});
  // Without a gate the first weight has as many rows as the second has columns, and tiles hold 64 rows.
  expect_same_bits({41, 576, 192, 3, 2}, {.lora = MoeLora::kSplit, .activation = testing::kSquaredRelu});
}

/// Forward with a bias, and a gradient that is added to existing values.
TEST_F(TileProducts, OfALinearWeightInTilesHaveTheBitsOfADenseOne) {
  struct Case {
    int64_t tokens, in, out, threads;
  };
  for (const Case& c : {Case{1, 32, 64, 2}, {33, 544, 64, 1}, {300, 96, 576, 3}, {700, 1056, 128, 2}, {0, 64, 64, 2}}) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " x " << c.in << " -> " << c.out);
    ThreadPool pool(static_cast<int>(c.threads));
    Stream stream(Device{}, pool);
    Arena scratch(Device{}, "scratch");
    scratch.reserve(0);
    const Context context(stream, scratch);
    uint64_t key = 0;
    std::deque<Buffer> buffers;
    const auto random = [&](Shape shape) {
      buffers.emplace_back(Device{}, static_cast<size_t>(shape.numel()) * sizeof(BFloat16) + 1);
      const Tensor tensor = buffers.back().tensor(shape, DType::kBF16);
      random_fill(context, {.dst = tensor, .key = ++key});
      stream.synchronize();
      return tensor;
    };
    const auto bits = [&](const Tensor& t) {
      stream.synchronize();
      return std::vector<BFloat16>(t.as<BFloat16>(), t.as<BFloat16>() + t.numel());
    };
    const Tensor x = random({c.tokens, c.in}), dy = random({c.tokens, c.out}), bias = random({c.out});
    const Tensor w = random({c.out, c.in}), y = random({c.tokens, c.out}), dx = random({c.tokens, c.in});
    const std::vector<BFloat16> dx_before = bits(dx);
    std::vector<std::vector<BFloat16>> results[2];
    for (auto& found : results) {
      const WeightView view{w, &found == results ? &dense_format() : &tile_format()};
      if (view.format == &tile_format()) order_as_tiles(pool, w);
      for (const Tensor& b : {Tensor{}, bias}) {
        linear(context, {.x = x, .w = view, .bias = b, .y = y});
        found.push_back(bits(y));
      }
      for (float beta : {0.0f, 1.0f}) {
        std::copy(dx_before.begin(), dx_before.end(), dx.as<BFloat16>());
        linear_grad(context, {.dy = dy, .w = view, .dx = {dx, beta}, .dw = {}, .dbias = {}, .dxa = {}, .dlora_b = {}});
        found.push_back(bits(dx));
      }
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      ASSERT_EQ(results[0][i].size(), results[1][i].size());
      if (results[0][i].empty()) continue;
      EXPECT_EQ(std::memcmp(results[0][i].data(), results[1][i].data(), results[0][i].size() * sizeof(BFloat16)), 0)
          << i;
    }
  }
}

/// With dropout an adapter's part is added to the base's product, which tiles compute in both formats.
TEST_F(TileProducts, MatchVectorsWithDropout) {
  for (int64_t intermediate : {160, 48}) {  // with 48 gate and up do not fill strips
    const MoeSizes s{41, 288, intermediate, 3, 2};
    expect_matches_vectors(s, {.lora = MoeLora::kSplit, .dropout = 0.25f, .base_trained = false});
    expect_matches_vectors(s, {.lora = MoeLora::kSplit, .base_trained = false});
  }
}

/// On AVX-512 such weights are multiplied with unrounded activations.
TEST_F(TileProducts, OfEightBitsMatchVectors) {
  const MoeSizes sizes[] = {
      {1, 64, 64, 5, 2},       // one token, most experts empty
      {19, 128, 64, 3, 2},     // less than a tile of rows
      {33, 64, 192, 2, 1},     // one row more than a block; strips that do not fill a group
      {40, 1088, 320, 3, 2},   // two blocks of k, the second one tile deep
      {21, 320, 1152, 2, 2},   // the same in the second product, and three blocks in the gradient of the first
      {600, 128, 64, 1, 1},    // more rows than a task takes
      {530, 2112, 128, 1, 1},  // rows in more tasks than one
      {70, 13376, 64, 1, 1},   // a product so deep that rows are packed part by part
      {257, 128, 64, 256, 8}   // many experts with few rows each
  };
  for (const MoeSizes& s : sizes) {
    expect_matches_vectors(s, {.base_format = &int8_format()});
    expect_matches_vectors(s, {.lora = MoeLora::kSplit, .base_format = &int8_format()});
  }
}

TEST_F(TileProducts, OfEightBitsMatchVectorsWithAdaptersAndBiases) {
  const MoeSizes s{41, 1088, 128, 3, 2};
  for (int64_t rank : {1, 20, 64, 516}) {
    for (MoeLora lora : {MoeLora::kSplit, MoeLora::kShared, MoeLora::kDownOnly}) {
      expect_matches_vectors(s, {.lora = lora, .rank = rank, .base_format = &int8_format()});
    }
  }
  expect_matches_vectors(
      s, {.lora = MoeLora::kShared, .base_format = &int8_format(), .biases = true, .biases_trained = false});
  expect_matches_vectors(s, {.lora = MoeLora::kSplit, .dropout = 0.25f, .base_format = &int8_format()});
  expect_matches_vectors(s, {.lora = MoeLora::kSplit, .base_format = &int8_format(), .x_trained = false});
  expect_matches_vectors(s, {.base_format = &int8_format(), .x_trained = false});
  for (MoeLora lora : {MoeLora::kNone, MoeLora::kSplit}) {
    expect_matches_vectors(s, {.lora = lora, .base_format = &int8_format(), .router_weights_trained = false});
  }
}

/// Values that are not finite remain visible, only in their own row.
TEST_F(TileProducts, OfEightBitsKeepWhatIsNotFinite) {
  OpCase c = moe_case({4, 128, 64, 2, 1}, {.base_format = &int8_format()});
  for (double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    c.inputs[0].values[130] = value;  // token 1
    const OpResult got = run_on(Isa::kAmx, c);
    for (size_t i = 0; i < got.outputs[0].size(); ++i) {
      EXPECT_EQ(std::isfinite(got.outputs[0][i]), i / 128 != 1) << i;
    }
  }
}

}  // namespace
}  // namespace hone
