#include "data/mixture.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <set>

#include "core/philox.h"
#include "data/data_testing.h"
#include "data/loader.h"

namespace hone {
namespace {

using testing::Each;
using testing::ElementsAre;

/// Samples of data sets of these sizes, one behind the other.
SampleStore store_with(const std::vector<int>& sizes) {
  SampleStore store(8);
  int32_t token = 0;
  for (size_t dataset = 0; dataset < sizes.size(); ++dataset) {
    std::vector<Sample> samples;
    for (int i = 0; i < sizes[dataset]; ++i, ++token) {
      samples.push_back({{token, token, token}, {token, token, token}, {}});
    }
    store.append(block_of(samples, 8, Overlength::kDrop), static_cast<int32_t>(dataset));
  }
  return store;
}

std::vector<int64_t> counts_of(const SampleStore& store, const std::vector<int64_t>& epoch, size_t datasets) {
  std::vector<int64_t> counts(datasets);
  for (const int64_t sample : epoch) ++counts[static_cast<size_t>(store[sample].dataset)];
  return counts;
}

TEST(Mixture, QuotasAddUpToTheTotal) {
  EXPECT_THAT(quotas({1, 1, 1}, 10), ElementsAre(4, 3, 3));
  EXPECT_THAT(quotas({2, 1}, 9), ElementsAre(6, 3));
  EXPECT_THAT(quotas({0.7, 0, 0.3}, 5), ElementsAre(4, 0, 1));
  EXPECT_THAT(quotas({0, 0}, 5), ElementsAre(0, 0));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    PhiloxSequence random(seed);
    std::vector<double> weights;
    for (uint64_t i = 0, n = 1 + random.below(6); i < n; ++i) weights.push_back(1e-9 + random.uniform());
    const auto total = static_cast<int64_t>(random.below(1000));
    const std::vector<int64_t> parts = quotas(weights, total);
    EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), int64_t{0}), total) << seed;
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(parts[i]), static_cast<double>(total) * weights[i] / sum, 1.0 + 1e-6) << seed;
    }
  }
}

TEST(Mixture, WithoutWeightsAnEpochHasEachSampleOnce) {
  const SampleStore store = store_with({3, 2});
  EXPECT_THAT(mix_epoch(store, {}, 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(mix_epoch(store, {}, 7), ElementsAre(0, 1, 2, 3, 4));
}

TEST(Mixture, EachEpochHasTheSharesAskedFor) {
  const SampleStore store = store_with({80, 20});
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    EXPECT_THAT(counts_of(store, mix_epoch(store, {true, 1, {1, 1}}, epoch), 2), ElementsAre(50, 50));
    EXPECT_THAT(counts_of(store, mix_epoch(store, {true, 1, {0.9, 0.1}}, epoch), 2), ElementsAre(90, 10));
  }
}

TEST(Mixture, ASetGoesThroughAllItsSamplesBeforeOneComesAgain) {
  const SampleStore store = store_with({80, 20});
  const MixtureOptions options = {true, 1, {1, 1}};
  std::map<int64_t, int64_t> seen;
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    for (const int64_t sample : mix_epoch(store, options, epoch)) ++seen[sample];
    // 50 (epoch + 1) draws of 80 and of 20 samples: no two of a set differ by more than one.
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 80}, {80, 100}}) {
      std::set<int64_t> counts;
      for (int64_t i = begin; i < end; ++i) counts.insert(seen[i]);
      EXPECT_LE(*counts.rbegin() - *counts.begin(), 1);
    }
  }
  for (int64_t i = 0; i < 80; ++i) EXPECT_EQ(seen[i], 5);     // 8 · 50 / 80
  for (int64_t i = 80; i < 100; ++i) EXPECT_EQ(seen[i], 20);  // 8 · 50 / 20
}

TEST(Mixture, IsAFunctionOfSeedAndEpochAlone) {
  const SampleStore store = store_with({80, 20});
  const MixtureOptions options = {true, 1, {1, 3}};
  const std::vector<int64_t> third = mix_epoch(store, options, 3);
  mix_epoch(store, options, 0);
  EXPECT_EQ(mix_epoch(store, options, 3), third);
  EXPECT_NE(mix_epoch(store, options, 4), third);
  EXPECT_NE(mix_epoch(store, {true, 2, {1, 3}}, 3), third);
}

TEST(Mixture, WithoutShuffleTheSetsKeepTheirOrder) {
  EXPECT_THAT(mix_epoch(store_with({3, 1}), {false, 1, {1, 1}}, 0), ElementsAre(0, 1, 3, 3));
  EXPECT_THAT(mix_epoch(store_with({3, 1}), {false, 1, {1, 1}}, 1), ElementsAre(2, 0, 3, 3));
}

TEST(Mixture, ASetWithoutSamplesGivesItsShareToTheOthers) {
  EXPECT_THAT(counts_of(store_with({3, 0, 2}), mix_epoch(store_with({3, 0, 2}), {true, 1, {1, 8, 1}}, 0), 3),
              ElementsAre(3, 0, 2));
}

TEST(Mixture, TheLoaderNumbersASampleThatComesTwiceTwice) {
  const SampleStore store = store_with({8, 2});
  Loader loader(store, {.per_device_batch_size = 2, .dataset_weights = {1, 1}});
  Loader again(store, {.per_device_batch_size = 2, .dataset_weights = {1, 1}});
  std::set<int64_t> ids;
  std::vector<int64_t> tokens(2);
  for (int64_t step = 0; step < loader.steps_in_epoch(0); ++step) {
    const StepData data = loader.step(step), same = again.step(step);
    for (size_t i = 0; i < data.micro_batches.size(); ++i) {
      const MicroBatch& batch = data.micro_batches[i];
      EXPECT_EQ(batch.input_ids, same.micro_batches[i].input_ids);
      ids.insert(batch.sample_ids.begin(), batch.sample_ids.end());
      for (const int32_t dataset : batch.dataset_ids) ++tokens[static_cast<size_t>(dataset)];
    }
  }
  EXPECT_EQ(ids.size(), 10u);
  EXPECT_THAT(tokens, Each(10));  // 5 samples of 2 learnt tokens each
  int64_t evaluated = 0;
  for (const MicroBatch& batch : loader.all_in_order()) evaluated += batch.documents();
  EXPECT_EQ(evaluated, 10);
}

}  // namespace
}  // namespace hone
