#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/bpe_merge.h"
#include "text/bpe_trainer.h"
#include "text/token_search.h"
#include "text/tokenizer.h"

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

std::vector<std::string> corpus() {
  std::vector<std::string> texts;
  for (int i = 0; i < 50; ++i)
    texts.push_back("the cat and the other cat thought about the weather, " + std::to_string(i) +
                    " times<|im_end|>\nein Übermut, 漢字 e\u0301 ааа aaaa");
  return texts;
}

BpeTrainerOptions options(int32_t vocab_size) { return {vocab_size, {"<|endoftext|>", "<|im_end|>"}, {"<think>"}, 2}; }

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  const std::vector<std::string> texts{"ab ab ab cd cd", "cd ab"};
  const Json json = train_bpe(texts, {258, {}, {}, 2});
  // "ab" occurs 4 times, "cd" 3 times, " a" 3 times: of equal counts the smaller ids, letters before the space.
  EXPECT_EQ(json["model"]["merges"].dump(), R"([["a","b"],["c","d"]])");
}

TEST(BpeTrainer, MakesATokenizerThatGivesTextsBack) {
  const std::vector<std::string> texts = corpus();
  const Tokenizer tokenizer = Tokenizer::parse(train_bpe(texts, options(300)).dump(), "trained");
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_EQ(tokenizer.token_to_id("<|endoftext|>"), 297);
  EXPECT_EQ(tokenizer.token_to_id("<|im_end|>"), 298);
  EXPECT_EQ(tokenizer.token_to_id("<think>"), 299);
  EXPECT_TRUE(tokenizer.is_special(298));
  EXPECT_FALSE(tokenizer.is_special(299));
  EXPECT_EQ(tokenizer.encode(" the", false).size(), 1u);
  const std::string text = "the cat of Übermut 🙂 12<think>";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
}

TEST(BpeTrainer, EveryMergeIsMadeByEncodingWhatItSpells) {
  const std::vector<std::string> texts = corpus();
  const Tokenizer tokenizer = Tokenizer::parse(train_bpe(texts, options(400)).dump(), "trained");
  for (int32_t id = 256; id < tokenizer.vocab_size() - 3; ++id) {
    const std::string text = tokenizer.decode({{id}}, false);
    if (text.find("\uFFFD") != std::string::npos) continue;  // part of a character
    EXPECT_THAT(tokenizer.encode(text, false), testing::ElementsAre(id)) << text;
  }
}

TEST(BpeTrainer, DoesNotDependOnTheOrderOfTheTexts) {
  std::vector<std::string> texts = corpus();
  const Json forward = train_bpe(texts, options(400));
  std::reverse(texts.begin(), texts.end());
  EXPECT_EQ(forward, train_bpe(texts, options(400)));
}

TEST(BpeTrainer, StopsWhenNoPairIsFrequentEnough) {
  const std::vector<std::string> texts{"ab ab xy"};
  const Tokenizer tokenizer = Tokenizer::parse(train_bpe(texts, {1000, {}, {}, 2}).dump(), "trained");
  EXPECT_EQ(tokenizer.vocab_size(), 257);
}

TEST(BpeTrainer, DoesNotLearnAddedTokensOfTheTexts) {
  const std::vector<std::string> texts(10, "<|im_end|>");
  EXPECT_TRUE(train_bpe(texts, options(300))["model"]["merges"].empty());
}

TEST(BpeTrainer, RefusesAVocabularyWithoutRoom) {
  const std::vector<std::string> texts = corpus();
  EXPECT_THROW(train_bpe(texts, options(258)), UserError);
  EXPECT_NO_THROW(train_bpe(texts, options(259)));
  EXPECT_THROW(train_bpe(texts, {400, {"<s>", "<s>"}, {}, 2}), UserError);
  EXPECT_THROW(train_bpe(texts, {400, {""}, {}, 2}), UserError);
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
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(search.matches(text).size(), text.size());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace hone
