#include "core/philox.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace hone {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers published with the algorithm (philox4x32, 10 rounds).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  constexpr uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(philox(UINT64_MAX, {kOnes, kOnes, kOnes, kOnes}),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox(0x299f31d0a4093822u, {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}),
            (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, UniformNumbersNeverReachOne) {
  EXPECT_EQ(to_uniform(0), 0.0f);
  EXPECT_LT(to_uniform(0xffffffffu), 1.0f);
  EXPECT_EQ(to_uniform(0x80000000u), 0.5f);
}

TEST(PhiloxSequence, GoesOnFromAPositionAsIfItHadNotStopped) {
  PhiloxSequence whole(7), rest(7, 2);
  for (int i = 0; i < 8; ++i) whole.next();  // two counters of four words
  for (int i = 0; i < 8; ++i) EXPECT_EQ(whole.next(), rest.next());
}

TEST(PhiloxSequence, DrawsBelowABoundAndReachesEveryValue) {
  PhiloxSequence random(1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(random.below(5));
  EXPECT_EQ(seen, (std::set<uint64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(random.below(1), 0u);
}

TEST(PhiloxSequence, NormalNumbersHaveMeanZeroAndVarianceOne) {
  PhiloxSequence random(3);
  constexpr int kCount = 40000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  // Standard errors 1/sqrt(n) = 0.005 and sqrt(2/n) = 0.007; five of them.
  EXPECT_NEAR(sum / kCount, 0.0, 0.025);
  EXPECT_NEAR(squares / kCount, 1.0, 0.036);
}

TEST(MixKey, DistinctUsesOfASeedGetDistinctKeys) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t use = 0; use < 10; ++use) keys.insert(mix_key(seed, use));
  }
  EXPECT_EQ(keys.size(), 100u);
}

}  // namespace
}  // namespace hone
