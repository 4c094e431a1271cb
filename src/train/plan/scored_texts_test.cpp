#include "train/plan/scored_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace hone {
namespace {

using ::testing::ElementsAre;

ScoredText text(int64_t length, int64_t from) {
  ScoredText result{.ids = std::vector<int32_t>(static_cast<size_t>(length)), .from = from};
  std::iota(result.ids.begin(), result.ids.end(), 10);
  return result;
}

TEST(ScoredTexts, ScoreTheTokensFromTheirBeginOn) {
  const std::vector<ScoredText> texts = {text(4, 2), text(3, 1)};
  const std::vector<ScoredBatches> parts = scored_batches(texts);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].texts, 2);
  ASSERT_EQ(parts[0].batches.size(), 1u);
  const MicroBatch& batch = parts[0].batches[0];
  EXPECT_THAT(batch.input_ids, ElementsAre(10, 11, 12, 13, 10, 11, 12));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 4, 7));
  EXPECT_THAT(batch.rows, ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(batch.targets, ElementsAre(12, 13, 11, 12));
  EXPECT_THAT(batch.dataset_ids, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(batch.max_seqlen, 4);
}

TEST(ScoredTexts, FillMicroBatchesAndPartsInOrder) {
  const std::vector<ScoredText> texts(static_cast<size_t>(kScoredAtOnce) + 3, text(100, 99));
  const std::vector<ScoredBatches> parts = scored_batches(texts);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].texts, kScoredAtOnce);
  EXPECT_EQ(parts[1].texts, 3);
  EXPECT_EQ(parts[0].batches[0].documents(), 40);  // 4096 tokens at most
  EXPECT_EQ(parts[1].batches[0].dataset_ids, (std::vector<int32_t>{0, 1, 2}));
  const BatchCapacity capacity = scored_capacity(texts);
  EXPECT_EQ(capacity.max_tokens, 4000);
  EXPECT_EQ(capacity.max_documents, 40);
  EXPECT_EQ(capacity.max_seqlen, 100);
}

TEST(ScoredTexts, ALongTextIsAlone) {
  const std::vector<ScoredText> texts = {text(5000, 1), text(5, 1)};
  const std::vector<ScoredBatches> parts = scored_batches(texts);
  ASSERT_EQ(parts[0].batches.size(), 2u);
  EXPECT_EQ(scored_capacity(texts).max_tokens, 5000);
}

}  // namespace
}  // namespace hone
