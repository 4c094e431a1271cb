#include "infer/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace hone {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The tokens of `pages` pages; those of another `beginning` differ in the first one.
std::vector<int32_t> tokens_of(int64_t pages, int32_t beginning = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(pages * kCachePage));
  std::iota(tokens.begin(), tokens.end(), 0);
  tokens.front() = -beginning;
  return tokens;
}

std::span<const int32_t> page_of(const std::vector<int32_t>& tokens, int64_t page) {
  return std::span(tokens).subspan(static_cast<size_t>(page * kCachePage), size_t{kCachePage});
}

/// Takes and publishes pages of these tokens.
std::vector<int32_t> written(PagePool& pool, const std::vector<int32_t>& tokens, int variant = 0) {
  std::vector<int32_t> pages;
  for (int64_t i = 0; i < static_cast<int64_t>(tokens.size()) / kCachePage; ++i) {
    const int32_t before = pages.empty() ? PagePool::kNone : pages.back();
    pages.push_back(pool.take());
    EXPECT_TRUE(pool.publish(pages.back(), variant, before, page_of(tokens, i)));
  }
  return pages;
}

/// The pages of the longest beginning that is published.
std::vector<int32_t> found(PagePool& pool, int variant, std::span<const int32_t> tokens) {
  std::vector<int32_t> pages;
  for (; tokens.size() >= size_t{kCachePage}; tokens = tokens.subspan(size_t{kCachePage})) {
    const int32_t before = pages.empty() ? PagePool::kNone : pages.back();
    const auto page = pool.find(variant, before, tokens.first(size_t{kCachePage}));
    if (!page) break;
    pages.push_back(*page);
  }
  return pages;
}

void leave(PagePool& pool, const std::vector<int32_t>& pages) {
  for (size_t i = pages.size(); i > 0; --i) pool.give(pages[i - 1]);
}

TEST(PagePool, FindsTheLongestBeginningOfThatVariant) {
  PagePool pool(8);
  const std::vector<int32_t> tokens = tokens_of(3), pages = written(pool, tokens);
  EXPECT_THAT(pages, ElementsAre(0, 1, 2));
  EXPECT_THAT(found(pool, 0, tokens), ElementsAre(0, 1, 2));
  EXPECT_THAT(found(pool, 0, std::span(tokens).first(tokens.size() - 1)), ElementsAre(0, 1)) << "whole pages";
  EXPECT_THAT(found(pool, 1, tokens), IsEmpty());
  EXPECT_THAT(found(pool, 0, tokens_of(3, 1)), IsEmpty()) << "pages after another beginning are others";
  std::vector<int32_t> other = tokens;
  other[size_t{kCachePage}] = 7;
  EXPECT_THAT(found(pool, 0, other), ElementsAre(0));
}

TEST(PagePool, AnEqualPageIsNotPublishedAgain) {
  PagePool pool(4);
  const std::vector<int32_t> tokens = tokens_of(1);
  written(pool, tokens);
  EXPECT_FALSE(pool.publish(pool.take(), 0, PagePool::kNone, tokens));
}

TEST(PagePool, PagesStayUntilTheyAreNeededTheOldestAndLastFirst) {
  PagePool pool(5);
  const std::vector<int32_t> first = tokens_of(2), second = tokens_of(2, 1);
  leave(pool, written(pool, first));   // 0, 1
  leave(pool, written(pool, second));  // 2, 3
  EXPECT_EQ(pool.count(), 5);
  EXPECT_EQ(pool.take(), 4) << "nobody's before those that are kept";
  EXPECT_EQ(pool.take(), 1) << "the last page of the one that was left first";
  EXPECT_THAT(found(pool, 0, first), ElementsAre(0)) << "its beginning is still there, and now held";
  EXPECT_EQ(pool.take(), 3);
  EXPECT_EQ(pool.take(), 2);
  EXPECT_EQ(pool.count(), 0);
  EXPECT_THAT(found(pool, 0, second), IsEmpty());
}

TEST(PagePool, AHeldPageIsNotTaken) {
  PagePool pool(2);
  const std::vector<int32_t> tokens = tokens_of(1), pages = written(pool, tokens);
  EXPECT_THAT(found(pool, 0, tokens), ElementsAre(0));
  pool.give(0);
  EXPECT_EQ(pool.count(), 1) << "the other hold is left";
  pool.give(0);
  EXPECT_EQ(pool.count(), 2);
}

TEST(PagePool, ForgetsWhatPagesContain) {
  PagePool pool(2);
  const std::vector<int32_t> tokens = tokens_of(1);
  leave(pool, written(pool, tokens));
  const int32_t held = pool.take();
  pool.forget();
  EXPECT_THAT(found(pool, 0, tokens), IsEmpty());
  pool.give(held);
  EXPECT_EQ(pool.count(), 2);
  EXPECT_EQ(pool.take(), 0);
}

}  // namespace
}  // namespace hone
