#include <fmt/format.h>
#include <gmock/gmock.h>

#include <sys/file.h>

#include <numeric>
#include <thread>

#include "core/cpu/thread_pool.h"
#include "data/dataset/data_testing.h"
#include "data/dataset/dataset_builder.h"
#include "data/dataset/token_cache.h"
#include "data/packing/sample_store.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

std::string cached_rows(int count, const std::string& answer = "answer") {
  std::string rows;
  for (int i = 0; i < count; ++i) {
    const Json row = {{"messages",
                       {{{"role", "user"}, {"content", fmt::format("question {}", i)}},
                        {{"role", "assistant"}, {"content", fmt::format("{} {}", answer, i * i)}}}}};
    rows += row.dump() + "\n";
  }
  return rows;
}

void change_byte(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char old = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(old ^ 1));
}

class CachedData : public testing::Test {
 protected:
  CachedData() {
    options_.vocab_size = 5000;
    options_.max_length = 64;
    options_.block_tokens = 5000;
    options_.tokenized_cache = folder_ / "cache";
    options_.tokenizer_files = {folder_.write("tokenizer.json", "{}")};
    options_.datasets = {{folder_.write("chat.jsonl", cached_rows(3000))}};
  }

  TrainingData build(int threads = 3, const DataProgressCallback& progress = {}) {
    static const Tokenizer tokenizer = qwen_tokenizer();
    ThreadPool pool(threads);
    return build_training_data(options_, &tokenizer, pool, progress);
  }
  std::vector<std::string> blocks() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(options_.tokenized_cache)) {
      if (entry.path().extension() == ".bin") files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  DataFolder folder_;
  DataOptions options_;
};

TEST_F(CachedData, IsWhatWouldBeReadWithoutACache) {
  const TrainingData built = build();
  const TrainingData reused = build();
  ASSERT_GT(blocks().size(), 5u);
  DataOptions with = options_;
  options_.tokenized_cache.clear();
  const TrainingData plain = build();
  for (const TrainingData* data : {&built, &reused}) {
    EXPECT_EQ(data->train.fingerprint(), plain.train.fingerprint());
    ASSERT_EQ(data->train.size(), plain.train.size());
    EXPECT_EQ(data->train[2999].origin.line, 3000);
    EXPECT_EQ(data->train[2999].text_key, plain.train[2999].text_key);
    EXPECT_EQ(data->train_reports[0].counts, plain.train_reports[0].counts);
    EXPECT_EQ(data->train_reports[0].lengths.p90, plain.train_reports[0].lengths.p90);
    EXPECT_EQ(data->train_reports[0].decision, plain.train_reports[0].decision);
  }
  EXPECT_THAT(built.cache_lines, ElementsAre(HasSubstr("tokenized_cache: chat: built in ")));
  EXPECT_THAT(reused.cache_lines, ElementsAre(HasSubstr("tokenized_cache: chat: reused from ")));
  EXPECT_TRUE(plain.cache_lines.empty());
}

TEST_F(CachedData, IsTheSameBytesWithAnyNumberOfThreads) {
  build(1);
  const std::vector<std::string> one = blocks();
  options_.tokenized_cache = folder_ / "other";
  build(4);
  const std::vector<std::string> four = blocks();
  ASSERT_EQ(one.size(), four.size());
  ThreadPool pool(1);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(content_hash(one[i], pool), content_hash(four[i], pool));
}

TEST_F(CachedData, DoesNotFitOnceAnythingItDependsOnHasChanged) {
  build();
  const auto line = [&] {
    const std::string first = build().cache_lines.at(0);
    EXPECT_THAT(build().cache_lines.at(0), HasSubstr("reused"));
    return first;
  };
  folder_.write("chat.jsonl", cached_rows(3000, "answes"));  // same number of bytes
  EXPECT_THAT(line(), AllOf(HasSubstr("built ("), HasSubstr("chat.jsonl has changed")));
  folder_.write("tokenizer.json", "[]");
  EXPECT_THAT(line(), HasSubstr("tokenizer.json has changed"));
  options_.max_length = 48;
  EXPECT_THAT(line(), HasSubstr("max_length is 48, was 64"));
  options_.overlength = Overlength::kSplit;
  EXPECT_THAT(line(), HasSubstr("overlength is split, was drop"));
  options_.chat.train_on = TrainOn::kLast;
  EXPECT_THAT(line(), HasSubstr("train_on is last, was assistant"));
  options_.chat.chat_template_kwargs = Json{{"enable_thinking", false}};
  EXPECT_THAT(line(), HasSubstr(R"(chat_template_kwargs is {"enable_thinking":false}, was {})"));
  options_.chat.chat_template = read_fixture("templates/chatml.jinja") + "{# changed #}";
  EXPECT_THAT(line(), HasSubstr("chat_template has changed"));
  options_.datasets[0].samples = 100;
  EXPECT_THAT(line(), HasSubstr("samples is 100, was null"));
  options_.vocab_size = 5001;
  EXPECT_THAT(line(), HasSubstr("vocab_size is 5001, was 5000"));
}

TEST_F(CachedData, AFileThatWasOnlyTouchedIsNoChange) {
  build();
  fs::last_write_time(folder_ / "chat.jsonl", fs::file_time_type::clock::now());
  EXPECT_THAT(build().cache_lines.at(0), HasSubstr("reused"));
}

TEST_F(CachedData, EveryDamagedByteIsNoticedAndRepaired) {
  const std::string fingerprint = build().train.fingerprint();
  const std::string block = blocks().at(1);
  const auto size = static_cast<int64_t>(fs::file_size(block));
  for (const int64_t at : {int64_t{0}, int64_t{9}, int64_t{20}, int64_t{100}, size / 2, size - 1}) {
    change_byte(block, at);
    const TrainingData data = build();
    EXPECT_THAT(data.cache_lines.at(0), HasSubstr("continued after ")) << at;  // the first block is valid
    EXPECT_EQ(data.train.fingerprint(), fingerprint) << at;
  }
  fs::resize_file(block, 100);
  EXPECT_EQ(build().train.fingerprint(), fingerprint);
  change_byte(blocks().at(0), size / 2);
  EXPECT_THAT(build().cache_lines.at(0), AllOf(HasSubstr("built ("), HasSubstr("its checksum is wrong")));
  folder_.write(fs::relative(fs::path(block).parent_path() / "manifest.json", folder_.path()), "{\"inputs\": 3");
  EXPECT_EQ(build().train.fingerprint(), fingerprint);
  EXPECT_THAT(build().cache_lines.at(0), HasSubstr("reused"));
}

TEST_F(CachedData, ABuildThatWasStoppedGoesOn) {
  struct Stop {};
  EXPECT_THROW(build(2,
                     [](const DataProgress& progress) {
                       if (progress.rows > 2000) throw Stop();
                     }),
               Stop);
  const size_t whole = blocks().size();
  ASSERT_GT(whole, 2u);
  folder_.write(fs::relative(blocks()[0] + ".123.tmp", folder_.path()), "half of a block");
  std::vector<int64_t> rows;
  const TrainingData data = build(2, [&](const DataProgress& progress) { rows.push_back(progress.rows); });
  EXPECT_THAT(data.cache_lines.at(0), AllOf(HasSubstr("continued after "), HasSubstr("of a build that was stopped")));
  ASSERT_FALSE(rows.empty());
  EXPECT_GT(rows.front(), 2048);  // the first batch begins after the blocks that were kept
  EXPECT_FALSE(fs::exists(blocks()[0] + ".123.tmp"));
  options_.tokenized_cache.clear();
  EXPECT_EQ(data.train.fingerprint(), build().train.fingerprint());
}

TEST_F(CachedData, WaitsForAnotherProcessThatBuildsIt) {
  build();
  const fs::path lock = fs::path(blocks().at(0)).parent_path() / "lock";
  fs::remove(lock.parent_path() / "manifest.json");
  const int held = open(lock.c_str(), O_WRONLY);
  ASSERT_EQ(flock(held, LOCK_EX | LOCK_NB), 0);
  bool waited = false;
  const TrainingData data = build(2, [&](const DataProgress& progress) {
    if (!progress.waiting) return;
    waited = true;
    close(held);
  });
  EXPECT_TRUE(waited);
  EXPECT_EQ(data.train.size(), 3000);
}

TEST_F(CachedData, AFolderThatCannotBeWrittenIsAnErrorThatNamesTheKey) {
  options_.tokenized_cache = folder_.write("file", "x");
  EXPECT_THAT(refusal([&] { build(); }), AllOf(HasSubstr("the cache cannot be written"), HasSubstr("tokenized_cache")));
}

TEST(BlockFile, BelongsToItsPlace) {
  const DataFolder folder;
  const TokenBlock block = block_of({{{1, 2}, {1, 2}, {1, 0.5f}}}, 10, Overlength::kDrop);
  write_block(folder / "b", block, {"key", 2, 17});
  const TokenBlock back = read_block(folder / "b", {"key", 2, 17});
  EXPECT_THAT(back.input_ids, ElementsAre(1, 2));
  EXPECT_THAT(back.weights, ElementsAre(1, 0.5f));
  EXPECT_EQ(back.digest, block.digest);
  EXPECT_EQ(back.report, block.report);
  for (const BlockPlace& place : {BlockPlace{"yek", 2, 17}, BlockPlace{"key", 1, 17}, BlockPlace{"key", 2, 18}}) {
    EXPECT_THAT(refusal([&] { read_block(folder / "b", place); }), HasSubstr("it is a block of other data"));
  }
  EXPECT_THAT(refusal([&] { read_block(folder.write("c", "no block at all, but long enough"), {}); }),
              HasSubstr("not a block"));
}

TEST(ContentHash, SeesEveryByteAndNotTheThreads) {
  const DataFolder folder;
  std::string text;
  text.resize(40'000'000, 'x');
  ThreadPool one(1), four(4);
  const std::string hash = content_hash(folder.write("a", text), one);
  EXPECT_EQ(content_hash(folder / "a", four), hash);
  text[39'999'999] = 'y';
  EXPECT_NE(content_hash(folder.write("a", text), four), hash);
  EXPECT_NE(content_hash(folder.write("a", ""), four), hash);
}

TEST(ContentHashes, ARememberedHashIsUsedUntilTheFileChanges) {
  const DataFolder folder;
  ThreadPool pool(1);
  const std::string path = folder.write("data", "first");
  const auto settle = [&] { fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1)); };
  settle();
  std::string hash;
  { hash = ContentHashes(folder / "memory.json", pool).of(path); }
  // Its ctime is the present: too recent to be stored.
  EXPECT_FALSE(fs::exists(folder / "memory.json"));
  std::this_thread::sleep_for(std::chrono::milliseconds(2200));
  { EXPECT_EQ(ContentHashes(folder / "memory.json", pool).of(path), hash); }
  ASSERT_TRUE(fs::exists(folder / "memory.json"));
  Json memory = Json::parse(std::ifstream(folder / "memory.json"));
  memory[path]["hash"] = "remembered";
  folder.write("memory.json", memory.dump());
  EXPECT_EQ(ContentHashes(folder / "memory.json", pool).of(path), "remembered");
  folder.write("data", "secon");  // same number of bytes
  EXPECT_NE(ContentHashes(folder / "memory.json", pool).of(path), "remembered");
  folder.write("memory.json", "{broken");
  EXPECT_NE(ContentHashes(folder / "memory.json", pool).of(path), "remembered");
}

TEST(DescribeDifferences, NamesWhatChanged) {
  const Json before = {{"a_files", {{"x", "1"}, {"y", "2"}}}, {"n", 1}, {"t_hash", "5"}};
  const Json now = {{"a_files", {{"y", "3"}, {"z", "2"}}}, {"n", 2}, {"t_hash", "6"}};
  EXPECT_EQ(describe_differences(before, now),
            "y has changed; z is new; x is no longer there; n is 2, was 1; t has changed");
  EXPECT_EQ(describe_differences(now, now), "");
}

using testing::IsEmpty;

/// Tokens first, first + 1, …, all supervised.
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
