#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/processor_time_testing.h"
#include "text/bpe_merge.h"
#include "text/token_search.h"

namespace hone {
namespace {

TEST(BpeMerge, AllWaysOfMergingAgree) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    MergeTable table(60);
    for (uint32_t rank = 0; rank < 60; ++rank)
      table.set(int32_t(random() % (4 + rank)), int32_t(random() % (4 + rank)), {rank, int32_t(4 + rank)});
    std::vector<Symbol> symbols;
    for (uint32_t i = 0, n = random() % 120; i < n; ++i) symbols.push_back({int32_t(random() % 4), i, i + 1});
    std::vector<Symbol> scanned = symbols, heaped = symbols, ranked = symbols, chosen = symbols;
    MergeScratch scratch;
    merge_symbols_scanning(table, scanned, scratch);
    merge_symbols_with_heap(table, heaped, scratch);
    merge_symbols_by_rank(table, ranked, scratch);
    merge_symbols(table, chosen, scratch);
    EXPECT_EQ(scanned, heaped) << "seed " << seed;
    EXPECT_EQ(scanned, ranked) << "seed " << seed;
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

using Tokens = std::vector<std::pair<std::string_view, int32_t>>;

/// Position, length and id of the longest token at each position, by brute force.
std::vector<std::array<int64_t, 3>> tried(const Tokens& tokens, std::string_view text) {
  std::vector<std::array<int64_t, 3>> found;
  for (size_t at = 0; at < text.size(); ++at) {
    std::array<int64_t, 3> best = {-1, 0, 0};
    for (const auto& [token, id] : tokens) {
      if (!token.empty() && text.substr(at).starts_with(token) && static_cast<int64_t>(token.size()) >= best[1])
        best = {static_cast<int64_t>(at), static_cast<int64_t>(token.size()), id};
    }
    if (best[0] >= 0) found.push_back(best);
  }
  return found;
}

TEST(TokenSearch, FindsTheLongestTokenAtEachPlace) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> texts(1 + random() % 12);
    for (std::string& text : texts) {
      text.resize(random() % 6);
      for (char& c : text) c = "ab\xff"[random() % 3];
    }
    Tokens tokens;
    for (size_t i = 0; i < texts.size(); ++i) tokens.emplace_back(texts[i], static_cast<int32_t>(i));
    std::string text(random() % 40, 'a');
    for (char& c : text) c = "ab\xff"[random() % 3];
    const TokenSearch search(tokens);
    std::vector<std::array<int64_t, 3>> found;
    for (const TokenSearch::Match& match : search.matches(text)) found.push_back({match.begin, match.length, match.id});
    ASSERT_EQ(found, tried(tokens, text)) << "round " << round << " of seed 7";
  }
}

TEST(TokenSearch, LongTokensDoNotTakeLonger) {
  const std::string token = std::string(30'000, 'a') + "b", text(2'000'000, 'a');
  const TokenSearch search(Tokens{{token, 1}, {"a", 2}});
  const double begin = processor_seconds();
  EXPECT_EQ(search.matches(text).size(), text.size());
  EXPECT_LT(processor_seconds() - begin, 5);
}

}  // namespace
}  // namespace hone
