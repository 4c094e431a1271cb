#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "core/base/philox.h"
#include "data/dataset/data_testing.h"
#include "data/dataset/prepared_files.h"
#include "data/packing/loader.h"
#include "data/packing/micro_batch.h"
#include "data/packing/mixture.h"
#include "data/readers/csv_reader.h"

namespace hone {
namespace {

/// Samples of random lengths and masks. Token = sample * 1000 + position, so boundaries are visible.
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
  // 60 samples that fill a pack alone and 600 that share packs of ten: if packs were sorted by their earliest sample,
  // nearly all shared packs would be in the first half.
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
  // Hypergeometric: mean 30, standard deviation 2.7; the tolerance is five of them on each side.
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

using testing::Each;
using testing::ElementsAre;

/// Samples of data sets of these sizes, one after another.
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
    // 50 (epoch + 1) draws of 80 and of 20 samples: the counts of two samples of a data set differ by at most one.
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
  EXPECT_THAT(tokens, Each(10));  // 5 samples of 2 supervised tokens each
  int64_t evaluated = 0;
  for (const MicroBatch& batch : loader.all_in_order()) evaluated += batch.documents();
  EXPECT_EQ(evaluated, 10);
}

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
  // 7 and 6 open packs with 3 and 4 free tokens; 3 fits the first exactly, 4 the second.
  EXPECT_THAT(pack_best_fit(std::vector<int64_t>{3, 4, 6, 7}, {10, 10}, 100),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2)));
}

TEST(Packing, NoSampleLeavesItsWindow) {
  const std::vector<int64_t> lengths = {9, 9, 1, 1};
  EXPECT_THAT(pack_best_fit(lengths, {10, 10}, 2), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 3)));
  EXPECT_THAT(pack_best_fit(lengths, {10, 10}, 4), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(Packing, IsNearlyFull) {
  // Best fit decreasing needs at most 11/9 of the optimum, which is at least Σ / capacity (Johnson 1973). With many
  // small samples it is much better; 97 % is below the result for this distribution.
  const auto lengths = random_lengths(1, 4000, 300);
  const auto packs = pack_best_fit(lengths, {1000, 1000}, 4000);
  const auto total = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  EXPECT_GT(total / (1000.0 * static_cast<double>(packs.size())), 0.97);
}

TEST(Packing, WithoutPackingSamplesStayInOrder) {
  EXPECT_THAT(pack_in_order(5, 2), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
}

using testing::HasSubstr;

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string rows(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += Json{{"prompt", "be, brief"}, {"question", fmt::format("q{}", i)}, {"response", "say \"a\""}}.dump() + "\n";
  }
  return text;
}

TEST(CsvRecord, QuotesWhatNeedsIt) {
  EXPECT_EQ(csv_record({"a", "b c", ""}), "a,b c,\n");
  EXPECT_EQ(csv_record({"a,b", "say \"x\"", "two\nlines", " blank"}),
            "\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\" blank\"\n");
  EXPECT_EQ(csv_record({""}), "\"\"\n");
}

TEST(NodeShards, AreShuffledPartsOfEqualSizeAndTheRestGoesToTheLast) {
  const DataFolder folder;
  const NodeShards shards = write_node_shards({{folder.write("faq.jsonl", rows(10))}}, {4, folder / "out"});
  EXPECT_EQ(shards.samples_per_node, 2);
  const Json statistics = Json::parse(std::ifstream(folder / "out/dataset_stats.json"));
  EXPECT_EQ(statistics, (Json{{"total_samples", 10},
                              {"num_nodes", 4},
                              {"samples_per_node", 2},
                              {"columns", {"prompt", "question", "response"}}}));
  std::set<std::string> seen;
  std::string order;
  for (int node = 0; node < 4; ++node) {
    std::vector<std::string> lines = lines_of(folder / fmt::format("out/training_data_node_{}.csv", node));
    ASSERT_EQ(lines.size(), node == 3 ? 5u : 3u);
    EXPECT_EQ(lines[0], "prompt,question,response");
    for (size_t i = 1; i < lines.size(); ++i) {
      EXPECT_THAT(lines[i], testing::MatchesRegex("\"be, brief\",q[0-9],\"say \"\"a\"\"\""));
      seen.insert(lines[i]);
      order += lines[i].substr(12, 2);
    }
  }
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_NE(order, "q0q1q2q3q4q5q6q7q8q9");
  write_node_shards({{folder / "faq.jsonl"}}, {4, folder / "again"});
  EXPECT_EQ(lines_of(folder / "again/training_data_node_2.csv"), lines_of(folder / "out/training_data_node_2.csv"));
  write_node_shards({{folder / "faq.jsonl"}}, {4, folder / "other", 43});
  EXPECT_NE(lines_of(folder / "other/training_data_node_3.csv"), lines_of(folder / "out/training_data_node_3.csv"));
}

TEST(NodeShards, OtherRowsKeepTheirJson) {
  const DataFolder folder;
  const std::string line = R"({"messages":[{"role":"user","content":"a"}],"id":7})";
  write_node_shards({{folder.write("chat.jsonl", line + "\n" + line + "\n")}}, {2, folder / "out"});
  EXPECT_THAT(lines_of(folder / "out/training_data_node_1.jsonl"), ElementsAre(line));
  const Json statistics = Json::parse(std::ifstream(folder / "out/dataset_stats.json"));
  EXPECT_EQ(statistics["columns"], (Json{"messages", "id"}));
  // Rows of the other kind replace them, so a folder never contains both.
  const DatasetEntry faq{folder.write("faq.jsonl", rows(4))};
  EXPECT_THAT(refusal([&] { write_node_shards({faq}, {2, folder / "out"}); }), HasSubstr("exists already"));
  EXPECT_THAT(lines_of(folder / "out/training_data_node_1.jsonl"), ElementsAre(line));
  write_node_shards({faq}, {2, folder / "out", 42, {.replace = true}});
  EXPECT_FALSE(fs::exists(folder / "out/training_data_node_1.jsonl"));
  EXPECT_EQ(lines_of(folder / "out/training_data_node_1.csv").size(), 3u);
}

TEST(NodeShards, RefuseWhatCannotBeSplitOrWouldMix) {
  const DataFolder folder;
  const std::vector<DatasetEntry> entries = {{folder.write("faq.jsonl", rows(3))}};
  EXPECT_THAT(refusal([&] {
                write_node_shards(entries, {4, folder / "out"});
              }),
              HasSubstr("3 rows cannot be split over 4 nodes"));
  write_node_shards(entries, {3, folder / "out"});
  EXPECT_THAT(refusal([&] {
                write_node_shards(entries, {2, folder / "out"});
              }),
              HasSubstr("the output file exists already"));
}

TEST(NodeShards, NeverReplaceWhatIsReadNorWhatSomebodyElseWrote) {
  const DataFolder folder;
  const OutputRule forced{.replace = true};
  // The data set has the name of a shard, of either kind; another name of the same file; a folder.
  for (const char* name : {"a/training_data_node_0.jsonl", "b/training_data_node_1.jsonl"}) {
    const std::string data = folder.write(name, rows(4));
    const fs::path output = fs::path(data).parent_path();
    EXPECT_THAT(refusal([&] {
                  write_node_shards({{data}}, {2, output, 42, forced});
                }),
                HasSubstr("the data set would be written over"));
    EXPECT_EQ(lines_of(data).size(), 4u);
  }
  const std::string linked = folder.write("linked.jsonl", rows(4));
  fs::create_directories(folder / "c");
  fs::create_hard_link(linked, folder / "c/training_data_node_1.csv");
  EXPECT_THAT(refusal([&] {
                write_node_shards({{linked}}, {2, folder / "c", 42, forced});
              }),
              HasSubstr("the data set would be written over"));
  EXPECT_THAT(refusal([&] {
                write_node_shards({{folder / "a"}}, {2, folder / "a", 42, forced});
              }),
              HasSubstr("the data set would be written over"));
  // Files and links of somebody else.
  for (const char* name : {"training_data_node_0.csv", "training_data_node_0.jsonl", "dataset_stats.json"}) {
    folder.write(std::string("d/") + name, "mine");
    EXPECT_THAT(refusal([&] { write_node_shards({{linked}}, {2, folder / "d"}); }), HasSubstr("exists already"));
    EXPECT_THAT(lines_of(folder / ("d/" + std::string(name))), ElementsAre("mine"));
    fs::remove(folder / ("d/" + std::string(name)));
  }
  folder.write("precious.txt", "mine");
  fs::create_symlink(folder / "precious.txt", folder / "d/dataset_stats.json");
  EXPECT_THAT(refusal([&] { write_node_shards({{linked}}, {2, folder / "d"}); }), HasSubstr("a link"));
  write_node_shards({{linked}}, {2, folder / "d", 42, forced});
  EXPECT_THAT(lines_of(folder / "precious.txt"), ElementsAre("mine"));
  EXPECT_FALSE(fs::is_symlink(folder / "d/dataset_stats.json"));
}

}  // namespace
}  // namespace hone
