#include "ops/attention/attention_order.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

int64_t at_a_time(int64_t tokens, int64_t kv_heads, int64_t dim, int64_t v_dim) {
  constexpr size_t kL2 = size_t{60} << 20;
  AttentionArgs args;
  args.k.shape = {tokens, kv_heads * dim};
  args.v.shape = {tokens, kv_heads * v_dim};
  args.k.dtype = args.v.dtype = DType::kBF16;
  args.options.num_kv_heads = kv_heads;
  return kv_heads_at_a_time(kL2, args);
}

TEST(AttentionOrder, KeysAndValuesOfAPassFitInAThirdOfL2) {
  EXPECT_EQ(at_a_time(16384, 128, 192, 128), 2);  // 10 MB a head
  EXPECT_EQ(at_a_time(16384, 4, 128, 128), 2);    // 8 MB
  EXPECT_EQ(at_a_time(16384, 2, 256, 256), 1);    // 16 MB
  EXPECT_EQ(at_a_time(4096, 128, 192, 128), 8);
}

TEST(AttentionOrder, PassesHaveTheSameNumberOfHeads) {
  EXPECT_EQ(at_a_time(16384, 8, 64, 64), 4);  // five fit
  EXPECT_EQ(at_a_time(16384, 7, 64, 64), 1);
}

TEST(AttentionOrder, HasOneHeadAtLeastAndAllAtMost) {
  EXPECT_EQ(at_a_time(131072, 4, 128, 128), 1);
  EXPECT_EQ(at_a_time(128, 8, 128, 128), 8);
  EXPECT_EQ(at_a_time(0, 8, 128, 128), 8);
}

}  // namespace
}  // namespace hone
