#include "data/sample_store.h"

#include <gmock/gmock.h>

#include <numeric>

#include "data/data_testing.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Tokens first, first + 1, …, all learnt.
Sample counting(int32_t first, size_t length) {
  Sample sample;
  sample.input_ids.resize(length);
  std::iota(sample.input_ids.begin(), sample.input_ids.end(), first);
  sample.labels = sample.input_ids;
  return sample;
}

std::vector<int32_t> ids_of(const SampleStore& store, int64_t i) {
  return {store[i].input_ids.begin(), store[i].input_ids.end()};
}

TEST(SampleStore, GivesBackWhatWasAdded) {
  Sample weighted = counting(5, 3);
  weighted.labels[1] = kIgnoredLabel;
  weighted.weights = {1, 1, 0.5f};
  SampleStore store(10);
  store.append(block_of({counting(0, 2), weighted, counting(1, 4)}, 10, Overlength::kDrop), 2);
  store.append(block_of({counting(20, 2)}, 10, Overlength::kDrop), 0);
  ASSERT_EQ(store.size(), 4);
  EXPECT_THAT(store[1].input_ids, ElementsAre(5, 6, 7));
  EXPECT_THAT(store[1].labels, ElementsAre(5, kIgnoredLabel, 7));
  EXPECT_THAT(store[1].weights, ElementsAre(1, 1, 0.5f));
  EXPECT_THAT(store[0].weights, ElementsAre(1, 1));
  EXPECT_THAT(store[2].weights, ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(store[3].weights, IsEmpty());  // no weight in the block: all are 1
  EXPECT_EQ(store[1].dataset, 2);
  EXPECT_EQ(store[3].dataset, 0);
  EXPECT_EQ(store[1].origin.line, 2);
  EXPECT_EQ(store.length(2), 4);
  EXPECT_EQ(store.counts().tokens, 11);
  EXPECT_EQ(store.counts().supervised, 6);  // the first token of each sample is never predicted
}

TEST(SampleStore, DropsSamplesOfWhichNothingIsLearnt) {
  Sample first_only = counting(0, 4);
  for (size_t i = 1; i < 4; ++i) first_only.labels[i] = kIgnoredLabel;
  const SampleStore store = store_of({first_only, counting(0, 1), Sample()}, 10);
  EXPECT_EQ(store.size(), 0);
  EXPECT_EQ(store.counts().unsupervised, 3);
  EXPECT_EQ(store.counts().dropped_tokens, 5);
}

TEST(SampleStore, AppliesThePolicyForLongSamples) {
  const auto stored = [](Overlength overlength) { return store_of({counting(0, 4), counting(0, 10)}, 4, overlength); };
  const SampleStore dropped = stored(Overlength::kDrop);
  EXPECT_EQ(dropped.size(), 1);
  EXPECT_EQ(dropped.counts().too_long, 1);
  EXPECT_EQ(dropped.counts().dropped_tokens, 10);
  EXPECT_THAT(ids_of(stored(Overlength::kTruncateRight), 1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ids_of(stored(Overlength::kTruncateLeft), 1), ElementsAre(6, 7, 8, 9));
  EXPECT_EQ(stored(Overlength::kTruncateLeft).counts().dropped_tokens, 6);
  const SampleStore split = stored(Overlength::kSplit);
  ASSERT_EQ(split.size(), 4);
  EXPECT_THAT(ids_of(split, 2), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(ids_of(split, 3), ElementsAre(8, 9));
  EXPECT_EQ(split[3].origin.row, split[1].origin.row);
  EXPECT_EQ(split.counts().offered, 2);
  const std::string error = refusal([&] { stored(Overlength::kError); });
  EXPECT_THAT(error, HasSubstr("a sample has 10 tokens, max_length is 4"));
  EXPECT_THAT(error, HasSubstr("where: a:2"));
}

TEST(SampleStore, ExtractMovesSamplesAndKeepsTheOrderOfTheRest) {
  std::vector<Sample> samples;
  for (int32_t i = 0; i < 5; ++i) samples.push_back(counting(10 * i, 2));
  SampleStore store = store_of(samples, 10);
  const SampleStore taken = store.extract({1, 3});
  ASSERT_EQ(taken.size(), 2);
  ASSERT_EQ(store.size(), 3);
  EXPECT_THAT(ids_of(taken, 0), ElementsAre(10, 11));
  EXPECT_THAT(ids_of(taken, 1), ElementsAre(30, 31));
  EXPECT_THAT(ids_of(store, 1), ElementsAre(20, 21));
  EXPECT_EQ(store.counts().tokens, 6);
  EXPECT_EQ(store.counts().offered, 5);
  EXPECT_EQ(taken.counts().tokens, 4);
}

TEST(SampleStore, FingerprintSeesEveryTokenLabelWeightBorderAndChoice) {
  const auto fingerprint = [](const std::vector<Sample>& samples) { return store_of(samples, 10).fingerprint(); };
  const Sample sample = counting(0, 4);
  const std::string original = fingerprint({sample});
  EXPECT_EQ(original, fingerprint({sample}));
  Sample other = sample;
  other.input_ids[2] = 9;
  EXPECT_NE(original, fingerprint({other}));
  other = sample;
  other.labels[2] = kIgnoredLabel;
  EXPECT_NE(original, fingerprint({other}));
  other = sample;
  other.weights = {1, 1, 2, 1};
  EXPECT_NE(original, fingerprint({other}));
  EXPECT_NE(original, fingerprint({counting(0, 2), counting(2, 2)}));
  SampleStore first = store_of({sample, sample, sample}, 10), second = first;
  first.extract({0});
  second.extract({1});
  EXPECT_NE(first.fingerprint(), second.fingerprint());
}

TEST(SampleStore, FingerprintOfADataSetDoesNotSeeTheOthers) {
  const TokenBlock a = block_of({counting(0, 4)}, 10, Overlength::kDrop);
  const TokenBlock b = block_of({counting(9, 3)}, 10, Overlength::kDrop);
  SampleStore alone(10), second(10);
  alone.append(b, 0);
  second.append(a, 0);
  second.append(b, 1);
  EXPECT_EQ(alone.fingerprint_of(0), second.fingerprint_of(1));
  EXPECT_NE(alone.fingerprint_of(0), second.fingerprint_of(0));
}

}  // namespace
}  // namespace hone
