#include "text/bpe_merge.h"

#include <gtest/gtest.h>

#include <random>

namespace hone {
namespace {

TEST(BpeMerge, BothWaysOfMergingAgree) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    MergeTable table(60);
    for (uint32_t rank = 0; rank < 60; ++rank)
      table.set(int32_t(random() % (4 + rank)), int32_t(random() % (4 + rank)), {rank, int32_t(4 + rank)});
    std::vector<Symbol> symbols;
    for (uint32_t i = 0, n = random() % 120; i < n; ++i) symbols.push_back({int32_t(random() % 4), i, i + 1});
    std::vector<Symbol> scanned = symbols, heaped = symbols, chosen = symbols;
    MergeScratch scratch;
    merge_symbols_scanning(table, scanned, scratch);
    merge_symbols_with_heap(table, heaped, scratch);
    merge_symbols(table, chosen, scratch);
    EXPECT_EQ(scanned, heaped) << "seed " << seed;
    EXPECT_EQ(scanned, chosen) << "seed " << seed;
  }
}

TEST(BpeMerge, MergesTheLowestRankFirstAndOfEqualsTheLeftmost) {
  MergeTable table(2);
  table.set(1, 2, {1, 10});
  table.set(0, 1, {0, 11});
  MergeScratch scratch;
  std::vector<Symbol> symbols{{0, 0, 1}, {1, 1, 2}, {2, 2, 3}};
  merge_symbols(table, symbols, scratch);
  EXPECT_EQ(symbols, (std::vector<Symbol>{{11, 0, 2}, {2, 2, 3}}));

  MergeTable same(1);
  same.set(0, 0, {0, 1});
  symbols = {{0, 0, 1}, {0, 1, 2}, {0, 2, 3}};
  merge_symbols(same, symbols, scratch);
  EXPECT_EQ(symbols, (std::vector<Symbol>{{1, 0, 2}, {0, 2, 3}}));
}

TEST(BpeMerge, ALaterMergeOfAPairReplacesTheEarlier) {
  MergeTable table(2);
  table.set(1, 2, {0, 5});
  table.set(1, 2, {1, 6});
  ASSERT_NE(table.find(1, 2), nullptr);
  EXPECT_EQ(table.find(1, 2)->id, 6);
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.find(2, 1), nullptr);
}

}  // namespace
}  // namespace hone
