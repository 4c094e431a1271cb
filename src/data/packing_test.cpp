#include "data/packing.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "core/philox.h"

namespace hone {
namespace {

using testing::ElementsAre;

int64_t tokens_of(const std::vector<int64_t>& pack, const std::vector<int64_t>& lengths) {
  return std::accumulate(pack.begin(), pack.end(), int64_t{0},
                         [&](int64_t sum, int64_t i) { return sum + lengths[static_cast<size_t>(i)]; });
}

std::vector<int64_t> random_lengths(uint64_t seed, size_t count, uint64_t longest) {
  PhiloxSequence random(seed);
  std::vector<int64_t> lengths(count);
  for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random.below(longest));
  return lengths;
}

TEST(Packing, EverySampleIsInExactlyOnePackAndNoPackIsOverfull) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto lengths = random_lengths(seed, 1 + seed * 37, 100);
    const PackLimits limits{100, 5};
    std::vector<int64_t> seen;
    for (const auto& pack : pack_best_fit(lengths, limits, 64)) {
      EXPECT_LE(tokens_of(pack, lengths), limits.max_tokens);
      EXPECT_LE(static_cast<int64_t>(pack.size()), limits.max_documents);
      EXPECT_FALSE(pack.empty());
      seen.insert(seen.end(), pack.begin(), pack.end());
    }
    std::sort(seen.begin(), seen.end());
    std::vector<int64_t> all(lengths.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all) << "seed " << seed;
  }
}

TEST(Packing, ASampleGoesToTheFullestPackThatHasRoom) {
  // 7 and 6 open packs with room for 3 and 4; 3 fits the first exactly, 4 the second.
  EXPECT_THAT(pack_best_fit(std::vector<int64_t>{3, 4, 6, 7}, {10, 10}, 100),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2)));
}

TEST(Packing, NoSampleLeavesItsWindow) {
  const std::vector<int64_t> lengths = {9, 9, 1, 1};
  EXPECT_THAT(pack_best_fit(lengths, {10, 10}, 2), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 3)));
  EXPECT_THAT(pack_best_fit(lengths, {10, 10}, 4), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(Packing, IsNearlyFull) {
  // Best fit decreasing needs at most 11/9 of the optimum, Σ / capacity at least (Johnson 1973); with many small
  // samples it is far better, and 97 % full is what this distribution gives with a margin.
  const auto lengths = random_lengths(1, 4000, 300);
  const auto packs = pack_best_fit(lengths, {1000, 1000}, 4000);
  const auto total = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  EXPECT_GT(total / (1000.0 * static_cast<double>(packs.size())), 0.97);
}

TEST(Packing, WithoutPackingSamplesStayInOrder) {
  EXPECT_THAT(pack_in_order(5, 2), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
}

}  // namespace
}  // namespace hone
