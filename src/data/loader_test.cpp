#include "data/loader.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "core/philox.h"
#include "data/data_testing.h"

namespace hone {
namespace {

/// Samples of random lengths and masks. Token = sample * 1000 + position, so that a seam shows.
SampleStore random_store(int64_t count, int64_t longest, uint64_t seed = 1) {
  SampleStore store(longest);
  PhiloxSequence random(seed);
  for (int64_t i = 0; i < count; ++i) {
    Sample sample;
    const auto length = 2 + random.below(static_cast<uint64_t>(longest - 1));
    for (uint64_t position = 0; position < length; ++position) {
      sample.input_ids.push_back(static_cast<int32_t>(i * 1000 + static_cast<int64_t>(position)));
      const bool learnt = position + 1 == length || random.below(2) == 0;
      sample.labels.push_back(learnt ? sample.input_ids.back() : kIgnoredLabel);
      sample.weights.push_back(1.0f + static_cast<float>(position));
    }
    store.append(block_of({sample}, longest, Overlength::kDrop), static_cast<int32_t>(i % 3));
  }
  return store;
}

std::vector<int32_t> all_ids(const StepData& step) {
  std::vector<int32_t> ids;
  for (const MicroBatch& batch : step.micro_batches) {
    ids.insert(ids.end(), batch.input_ids.begin(), batch.input_ids.end());
    ids.push_back(-1);
  }
  return ids;
}

TEST(Loader, StepIsAFunctionOfItsNumberInAnyOrderOfCalls) {
  const SampleStore store = random_store(50, 20);
  const LoaderOptions options{1, 2, true, true, 7};
  Loader forward(store, options);
  const int64_t steps = forward.steps_in_epochs(3);
  std::vector<std::vector<int32_t>> expected;
  for (int64_t step = 0; step < steps; ++step) expected.push_back(all_ids(forward.step(step)));
  Loader backward(store, options);
  for (int64_t step = steps; step-- > 0;) EXPECT_EQ(all_ids(backward.step(step)), expected[static_cast<size_t>(step)]);
  Loader resumed(store, options);
  EXPECT_EQ(all_ids(resumed.step(steps / 2)), expected[static_cast<size_t>(steps / 2)]);
}

TEST(Loader, EpochsAndSeedsDifferAndEveryEpochHasAllSamplesOnce) {
  const SampleStore store = random_store(60, 20);
  for (const bool packing : {true, false}) {
    Loader loader(store, {2, 3, packing, true, 7});
    Loader other(store, {2, 3, packing, true, 8});
    EXPECT_NE(all_ids(loader.step(0)), all_ids(other.step(0)));
    EXPECT_NE(all_ids(loader.step(0)), all_ids(loader.step(loader.steps_in_epoch(0))));
    int64_t step = 0;
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      std::map<int64_t, int64_t> tokens;  // by sample id
      int64_t samples = 0;
      for (int64_t i = 0; i < loader.steps_in_epoch(epoch); ++i) {
        const StepData data = loader.step(step++);
        samples += data.samples;
        for (const MicroBatch& batch : data.micro_batches)
          for (int64_t id : batch.sample_ids) ++tokens[id];
      }
      EXPECT_EQ(samples, store.size());
      ASSERT_EQ(static_cast<int64_t>(tokens.size()), store.size());
      for (const auto& [id, count] : tokens) {
        EXPECT_EQ(id / store.size(), epoch);
        EXPECT_EQ(count, store.length(id % store.size()));
      }
    }
  }
}

TEST(Loader, NoTargetCrossesADocument) {
  const SampleStore store = random_store(80, 15);
  Loader loader(store, {2, 1, true, true, 3});
  for (int64_t step = 0; step < loader.steps_in_epoch(0); ++step) {
    for (const MicroBatch& batch : loader.step(step).micro_batches) {
      ASSERT_EQ(batch.cu_seqlens.front(), 0);
      ASSERT_EQ(batch.cu_seqlens.back(), batch.tokens());
      std::set<int32_t> last_rows;
      for (size_t d = 1; d < batch.cu_seqlens.size(); ++d) last_rows.insert(batch.cu_seqlens[d] - 1);
      for (size_t s = 0; s < batch.rows.size(); ++s) {
        const auto row = static_cast<size_t>(batch.rows[s]);
        EXPECT_FALSE(last_rows.contains(batch.rows[s]));
        EXPECT_EQ(batch.targets[s], batch.input_ids[row] + 1);  // the next token of the same sample
        EXPECT_EQ(batch.sample_ids[row], batch.sample_ids[row + 1]);
        EXPECT_EQ(batch.loss_weights[s], 1.0f + static_cast<float>(batch.targets[s] % 1000));
        EXPECT_EQ(batch.dataset_ids[s], batch.targets[s] / 1000 % 3);
      }
      for (size_t i = 0; i < batch.input_ids.size(); ++i) EXPECT_EQ(batch.positions[i], batch.input_ids[i] % 1000);
    }
  }
}

TEST(Loader, TargetsAreExactlyTheLabelsBehindTheFirstToken) {
  const SampleStore store = random_store(40, 15);
  Loader loader(store, {1, 4, true, true, 3});
  int64_t supervised = 0;
  for (int64_t step = 0; step < loader.steps_in_epoch(0); ++step) supervised += loader.step(step).supervised();
  EXPECT_EQ(supervised, store.counts().supervised);
}

TEST(Loader, NoMicroBatchExceedsTheCapacity) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const SampleStore store = random_store(200, 33, seed);
    for (const bool packing : {true, false}) {
      Loader loader(store, {3, 2, packing, true, seed});
      const BatchCapacity capacity = loader.capacity();
      EXPECT_LE(capacity.max_tokens, 3 * 33);
      for (int64_t step = 0; step < loader.steps_in_epochs(2); ++step) {
        const StepData data = loader.step(step);
        EXPECT_LE(data.packing_efficiency, 1.0);
        for (const MicroBatch& batch : data.micro_batches) {
          EXPECT_LE(batch.tokens(), capacity.max_tokens);
          EXPECT_LE(batch.documents(), capacity.max_documents);
          EXPECT_LE(batch.supervised(), capacity.max_supervised);
          EXPECT_LE(batch.max_seqlen, capacity.max_seqlen);
        }
      }
    }
  }
}

TEST(Loader, WithoutShuffleSamplesComeInOrder) {
  const SampleStore store = random_store(7, 10);
  Loader loader(store, {2, 1, false, false, 3});
  std::vector<int64_t> order;
  for (int64_t step = 0; step < loader.steps_in_epoch(0); ++step) {
    for (const MicroBatch& batch : loader.step(step).micro_batches)
      for (size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d)
        order.push_back(batch.sample_ids[static_cast<size_t>(batch.cu_seqlens[d])]);
  }
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST(Loader, TheLastStepOfAnEpochMayBeSmallerAndEpochsEndAtWholeNumbers) {
  const SampleStore store = random_store(7, 10);
  Loader loader(store, {1, 3, false, true, 3});
  EXPECT_EQ(loader.steps_in_epoch(0), 3);
  EXPECT_EQ(loader.step(2).micro_batches.size(), 1u);
  EXPECT_EQ(loader.step(3).micro_batches.size(), 3u);
  EXPECT_DOUBLE_EQ(loader.step(0).epoch, 1.0 / 3);
  EXPECT_DOUBLE_EQ(loader.step(2).epoch, 1.0);
  EXPECT_DOUBLE_EQ(loader.step(5).epoch, 2.0);
}

TEST(Loader, AFractionOfAnEpochIsRoundedUp) {
  const SampleStore store = random_store(10, 10);
  Loader loader(store, {1, 1, false, true, 3});
  EXPECT_EQ(loader.steps_in_epochs(1), 10);
  EXPECT_EQ(loader.steps_in_epochs(0.5), 5);
  EXPECT_EQ(loader.steps_in_epochs(2.31), 24);
  EXPECT_EQ(loader.steps_in_epochs(0.1), 1);
}

TEST(Loader, ShortAndLongSamplesAreSpreadOverAnEpoch) {
  // 60 samples that fill a pack alone and 600 that share packs of ten: were packs in the order of their earliest
  // sample, nearly all shared packs would come before the first half is over.
  std::vector<Sample> samples;
  for (int i = 0; i < 660; ++i) {
    const std::vector<int32_t> tokens(i < 60 ? 100 : 10, 1);
    samples.push_back({tokens, tokens, {}});
  }
  const SampleStore store = store_of(samples, 100);
  Loader loader(store, {1, 1, true, true, 5});
  ASSERT_EQ(loader.steps_in_epoch(0), 120);
  int64_t shared_in_first_half = 0;
  for (int64_t step = 0; step < 60; ++step) shared_in_first_half += loader.step(step).samples > 1 ? 1 : 0;
  // Hypergeometric: mean 30, standard deviation 2.7; five of them on each side.
  EXPECT_NEAR(static_cast<double>(shared_in_first_half), 30.0, 14.0);
}

TEST(Loader, EvaluationSeesAllSamplesOnceInOrder) {
  const SampleStore store = random_store(20, 10);
  const Loader loader(store, {1, 4, false, true, 3});
  std::vector<int64_t> ids;
  int64_t supervised = 0;
  for (const MicroBatch& batch : loader.all_in_order()) {
    ids.push_back(batch.sample_ids.front());
    supervised += batch.supervised();
  }
  ASSERT_EQ(ids.size(), 20u);
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], static_cast<int64_t>(i));
  EXPECT_EQ(supervised, store.counts().supervised);
}

}  // namespace
}  // namespace hone
