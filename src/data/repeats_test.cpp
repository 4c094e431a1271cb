#include "data/repeats.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "core/thread_pool.h"
#include "data/data_testing.h"
#include "data/text_key.h"

namespace hone {
namespace {

using testing::EndsWith;

uint64_t key_of(std::initializer_list<std::string_view> pieces) {
  TextKey key;
  for (const std::string_view piece : pieces) key.add(piece);
  return key.value();
}

TEST(TextKey, IsThatOfTheWordsInTheirPieces) {
  const uint64_t key = key_of({"user", "How  are\tyou?\n"});
  EXPECT_EQ(key_of({" user\n", "How are you?"}), key);
  EXPECT_EQ(key_of({"user", "\n", "How are\xC2\xA0you?\xE2\x80\x89"}), key);  // no-break space, thin space
  EXPECT_EQ(key_of({"user",
                    "How\xE3\x80\x80"
                    "are you?"}),
            key);  // ideographic space
  EXPECT_NE(key_of({"user", "Howare you?"}), key);
  EXPECT_NE(key_of({"user", "how are you?"}), key);
  EXPECT_NE(key_of({"user How", "are you?"}), key);
  EXPECT_NE(key_of({"user", "How are you", "?"}), key);
}

class RepeatedRows : public testing::Test {
 protected:
  static std::string row(const std::string& question, const std::string& answer) {
    return Json{{"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}}
               .dump() +
           "\n";
  }
  TrainingData build() {
    static const Tokenizer tokenizer = qwen_tokenizer();
    options_.vocab_size = 5000;
    ThreadPool pool(2);
    return build_training_data(options_, &tokenizer, pool);
  }

  DataFolder folder_;
  DataOptions options_;
};

TEST_F(RepeatedRows, AreFoundWithinAndAcrossDataSets) {
  options_.datasets = {
      {folder_.write("a.jsonl", row("one", "1") + row("two", "2") + row("one", "other") + row(" one\n", "1 "))},
      {folder_.write("b.jsonl", row("two", "2") + row("three", "3") + row("two", "2"))}};
  const Repeats found = find_duplicates(build());
  EXPECT_EQ(found.rows, 7);
  EXPECT_EQ(found.repeated, 3);
  ASSERT_EQ(found.examples.size(), 2u);
  EXPECT_THAT(found.examples[0].where, EndsWith("a.jsonl:4"));
  EXPECT_THAT(found.examples[0].first_where, EndsWith("a.jsonl:1"));
  EXPECT_THAT(found.examples[1].where, EndsWith("b.jsonl:1"));
  EXPECT_THAT(found.examples[1].first_where, EndsWith("a.jsonl:2"));
}

TEST_F(RepeatedRows, ThePartsOfASplitRowAreOneRow) {
  options_.datasets = {{folder_.write("t.jsonl", "{\"input_ids\": [5,5,5,5,5,5,5,5]}\n{\"input_ids\": [5,5,5,5]}\n")}};
  options_.max_length = 4;
  options_.overlength = Overlength::kSplit;
  const Repeats found = find_duplicates(build());
  EXPECT_EQ(found.rows, 2);
  EXPECT_EQ(found.repeated, 0);  // the whole rows differ
}

TEST_F(RepeatedRows, OfValidationDataAreLeaks) {
  options_.datasets = {{folder_.write("a.jsonl", row("one", "1") + row("two", "2"))}};
  options_.eval_datasets = {{folder_.write("v.jsonl", row("nine", "9") + row("two ", "2"))}};
  const TrainingData data = build();
  const Repeats found = find_leaks(data);
  EXPECT_EQ(found.rows, 2);
  EXPECT_EQ(found.repeated, 1);
  ASSERT_EQ(found.examples.size(), 1u);
  EXPECT_THAT(found.examples[0].where, EndsWith("v.jsonl:2"));
  EXPECT_THAT(found.examples[0].first_where, EndsWith("a.jsonl:2"));
  EXPECT_EQ(find_duplicates(data).repeated, 0);
}

TEST_F(RepeatedRows, ADuplicateOnBothSidesOfAValidationSplitIsALeak) {
  std::string rows;
  for (int i = 0; i < 20; ++i) rows += row("same", "1");
  options_.datasets = {{folder_.write("a.jsonl", rows)}};
  options_.val_split = 5;
  const TrainingData data = build();
  EXPECT_EQ(find_leaks(data).repeated, 5);
  EXPECT_EQ(find_duplicates(data).repeated, 14);
}

TEST(LengthHistogram, HasRoundBinsUpToTheNinetyNinthPercentileAndCountsEveryRow) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 1000; ++i) lengths.push_back(37 + i);
  lengths.push_back(50'000);
  const LengthHistogram bins = histogram_of(lengths, summarise_lengths(lengths));
  EXPECT_LE(bins.size(), 13u);
  EXPECT_GE(bins.size(), 6u);
  EXPECT_EQ(bins.front().from, 0);
  EXPECT_EQ(bins.front().to, 99);
  EXPECT_EQ(bins.front().rows, 63);
  EXPECT_EQ(bins.back().to, 50'000);
  int64_t rows = 0, tokens = 0, all = 0;
  for (const LengthBin& bin : bins) {
    rows += bin.rows;
    tokens += bin.tokens;
  }
  for (const int32_t length : lengths) all += length;
  EXPECT_EQ(rows, 1001);
  EXPECT_EQ(tokens, all);
  EXPECT_EQ(histogram_of({7}, summarise_lengths({7})).size(), 1u);
  EXPECT_TRUE(histogram_of({}, {}).empty());
}

}  // namespace
}  // namespace hone
