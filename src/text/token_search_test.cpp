#include "text/token_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>

namespace hone {
namespace {

using Tokens = std::vector<std::pair<std::string_view, int32_t>>;

/// Position, length and id of the longest token at each position, found by trying all.
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
