// Experts in tiles of tokens: the bits of outputs and of tokens' gradients are those of all tokens at once.
#include "ops/moe_experts/tiled_experts.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu/isa_testing.h"
#include "kernels/op_testing.h"
#include "ops/moe_experts/moe_experts_testing.h"

namespace hone {
namespace {

using testing::moe_case;
using testing::MoeLora;
using testing::MoeOptions;
using testing::MoeSizes;
using testing::OpCase;
using testing::OpResult;
using testing::Values;

/// Tiles that end inside the tokens, one token a tile, all tokens and more.
std::vector<int64_t> tiles_of(int64_t tokens) { return {1, 3, tokens / 2, tokens - 1, tokens, 4 * tokens}; }

/// Sums of at most `tokens` products, whose order alone differs.
void expect_close(const Values& got, const Values& want, int64_t tokens) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (double value : want) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], static_cast<double>(tokens) * 0x1p-24 * std::max(largest, 1.0)) << i;
  }
}

void expect_bits_of_all_at_once(const MoeSizes& sizes, MoeOptions options) {
  options.router_weights_trained = true;
  const OpCase all = moe_case(sizes, options);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const OpResult want = run_op(all, {.dtype = dtype});
    for (const int64_t tile : tiles_of(sizes.tokens)) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << ", " << sizes.tokens << " tokens in tiles of " << tile);
      options.token_tile = std::max<int64_t>(tile, 1);
      const OpCase tiled = moe_case(sizes, options);
      const OpResult got = run_op(tiled, {.dtype = dtype});
      EXPECT_EQ(got.outputs, want.outputs);
      ASSERT_EQ(got.gradients.size(), want.gradients.size());
      for (size_t i = 0; i < got.gradients.size(); ++i) {
        if (i < all.inputs.size() || tile >= sizes.tokens) {
          EXPECT_EQ(got.gradients[i], want.gradients[i]) << i;
        } else {
          expect_close(got.gradients[i], want.gradients[i], sizes.tokens);
        }
      }
      const OpResult again = run_op(tiled, {.dtype = dtype, .recompute = true, .threads = 3});
      EXPECT_EQ(again.outputs, got.outputs);
      EXPECT_EQ(again.gradients, got.gradients);
    }
  }
}

TEST(TiledExperts, HaveTheBitsOfAllTokensAtOnce) {
  expect_bits_of_all_at_once({41, 96, 40, 6, 2}, {});
  expect_bits_of_all_at_once({1, 5, 3, 4, 2}, {});
  expect_bits_of_all_at_once({23, 19, 17, 5, 3}, {.biases = true});
  expect_bits_of_all_at_once({23, 19, 17, 5, 3}, {.x_trained = false});
  expect_bits_of_all_at_once({70, 8, 8, 3, 2}, {.activation = testing::kSquaredRelu});
  expect_bits_of_all_at_once({600, 640, 128, 2, 1}, {});                                 // more rows than a task takes
  expect_bits_of_all_at_once({70, 64, 64, 3, 1}, {.ids = std::vector<int32_t>(70, 2)});  // experts without rows
}

TEST(TiledExperts, HaveTheSameBitsWithAdapters) {
  for (const MoeLora lora : {MoeLora::kSplit, MoeLora::kShared, MoeLora::kDownOnly}) {
    expect_bits_of_all_at_once({41, 64, 32, 6, 2}, {.lora = lora, .base_trained = false});
    expect_bits_of_all_at_once({41, 32, 24, 6, 2}, {.lora = lora, .dropout = 0.25f});
  }
}

TEST(TiledExperts, HaveTheSameBitsOfAPackedBaseAndWithAnyInstructionSet) {
  for (const Isa isa : supported_isas()) {
    const ForcedIsa forced(isa);
    expect_bits_of_all_at_once({41, 128, 64, 6, 2}, {.base_trained = false});
    if (testing::test_device().kind == DeviceKind::kCpu) {
      expect_bits_of_all_at_once({41, 64, 64, 3, 2}, {.lora = MoeLora::kSplit, .base_format = &int8_format()});
    }
    for (const PackedFormat* format : std::initializer_list<const PackedFormat*>{&nf4_format(), &int4_format(32)}) {
      expect_bits_of_all_at_once({41, 64, 64, 6, 2}, {.lora = MoeLora::kSplit, .base_format = format});
      expect_bits_of_all_at_once({41, 64, 64, 6, 2}, {.base_format = format});
    }
  }
}

TEST(TiledExperts, MatchTheReference) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const double tolerance = dtype == DType::kF32 ? 2e-5 : 7 * 3 * 0x1p-8;  // as in moe_experts_test.cpp
    expect_matches_reference(moe_case({7, 5, 3, 5, 2}, {.token_tile = 3}), dtype, tolerance);
    expect_matches_reference(moe_case({19, 16, 8, 3, 2}, {.lora = MoeLora::kSplit, .token_tile = 4}), dtype, tolerance);
    expect_matches_reference(moe_case({7, 5, 6, 5, 2}, {.lora = MoeLora::kShared, .dropout = 0.25f, .token_tile = 2}),
                             dtype, tolerance);
  }
}

TEST(TiledExperts, BoundTheRowsOfManyTokensAlone) {
  EXPECT_EQ(bounded_token_tile(65536, 8), 0);
  EXPECT_EQ(bounded_token_tile(65537, 8), 32768);
  EXPECT_EQ(bounded_token_tile(1 << 20, 8), 32768);
  EXPECT_EQ(bounded_token_tile(1 << 20, 10), 26112);  // a multiple of 128
  EXPECT_EQ(bounded_token_tile(1 << 20, 1), 262144);
  EXPECT_EQ(bounded_token_tile(1 << 20, 0), 0) << "without experts";
}

}  // namespace
}  // namespace hone
