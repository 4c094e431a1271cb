#include <fmt/format.h>
#include <gmock/gmock.h>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/files/environment_testing.h"
#include "data/dataset/data_testing.h"
#include "data/dataset/dataset_builder.h"
#include "data/dataset/dataset_reader.h"
#include "data/dataset/repeats.h"
#include "data/formats/text_key.h"
#include "data/packing/loader.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kChat = R"({"messages": [{"role": "user", "content": "q"}]})";

/// "format where" of each row.
std::vector<std::string> rows_of(const DatasetEntry& entry, std::string* decision = nullptr) {
  DatasetReader reader(entry);
  std::vector<std::string> rows;
  for (DatasetRow row; reader.next(row);) {
    read_row(row, entry.mapping);
    const std::string where = row.where();
    rows.push_back(std::string(name_of(row.format)) + " " + where.substr(where.find_last_of('/') + 1));
  }
  reader.finish();
  EXPECT_EQ(reader.bytes_read(), entry.samples ? reader.bytes_read() : reader.bytes_total());
  if (decision) *decision = reader.decision();
  return rows;
}

std::string error_of(const DatasetEntry& entry) {
  return refusal([&] { rows_of(entry); });
}

TEST(DatasetReader, AFolderMayMixKindsAndFormats) {
  const DataFolder folder;
  folder.write("d/a.jsonl", std::string(kChat) + "\n" + kChat + "\n");
  folder.write("d/b.csv", "prompt,question,response\ns,q,a\n");
  folder.write("d/c.json", R"({"data": [{"instruction": "i", "output": "o"}]})");
  folder.write("d/d.txt", "some text\nin lines\n");
  folder.write("d/e.md", "# more\n");
  folder.write("d/f.txt", " \n");
  folder.write("d/g.tsv", "text\nx\n");
  folder.write("d/README.md", "about");
  folder.write("d/h.png", "no data");
  folder.write("d/.hidden", "x");
  std::string decision;
  EXPECT_THAT(rows_of({folder / "d"}, &decision),
              ElementsAre("messages a.jsonl:1", "messages a.jsonl:2", "prompt_response b.csv:2", "alpaca c.json:1",
                          "text d.txt", "text e.md", "text g.tsv:2"));
  EXPECT_THAT(decision, AllOf(HasSubstr("messages: column 'messages' in "), HasSubstr("text: plain text in "),
                              HasSubstr(" and 2 more files"), HasSubstr("; not read: README.md, h.png")));
}

TEST(DatasetReader, WhatIsNotThereIsAnsweredByWhatItMayBe) {
  const DataFolder folder;
  folder.write("chat.jsonl", kChat);
  EXPECT_THAT(error_of({folder / "chart.jsonl"}),
              AllOf(HasSubstr("no such file"), HasSubstr("Did you mean 'chat.jsonl'")));
  const StatedVariable offline("HF_HUB_OFFLINE", "1");
  EXPECT_THAT(error_of({"nobody-has-this/gsm8k"}),
              HasSubstr("hone download --repo-type dataset nobody-has-this/gsm8k"));
  EXPECT_THAT(error_of({folder / "no/chat.jsonl"}), testing::Not(HasSubstr("download")));
  for (const char* address :
       {"s3://bucket/chat.jsonl", "gs://bucket/x", "https://host/chat.jsonl", "hf://datasets/a/b"}) {
    EXPECT_THAT(error_of({address}), HasSubstr("data are not read from")) << address;
  }
}

TEST(DatasetReader, ADelimiterIsForCsv) {
  const DataFolder folder;
  DatasetEntry entry{folder.write("a.csv", "question|answer\nq, too|a\n")};
  entry.delimiter = '|';
  EXPECT_THAT(rows_of(entry), ElementsAre("prompt_response a.csv:2"));
  entry.path = folder.write("a.jsonl", kChat);
  EXPECT_THAT(error_of(entry), HasSubstr("delimiter is set, but the data set has no CSV file"));
}

TEST(DatasetReader, DetectsFromTheRowsThatAreUsed) {
  const DataFolder folder;
  const std::string path = folder.write("d.jsonl", std::string(kChat) + "\n{broken\n");
  EXPECT_THAT(rows_of({path, SampleFormat::kAuto, 1}), ElementsAre("messages d.jsonl:1"));
  EXPECT_THAT(error_of({path}), HasSubstr("d.jsonl:2"));
}

TEST(DatasetReader, EmptyFilesHaveNoRows) {
  const DataFolder folder;
  for (const char* name : {"a.jsonl", "a.json", "a.csv", "a.tsv", "a.txt"}) {
    EXPECT_THAT(rows_of({folder.write(name, "")}), ElementsAre()) << name;
  }
  EXPECT_THAT(rows_of({folder.write("h.csv", "prompt,response\r\n")}), ElementsAre());
}

TEST(DatasetReader, SplitsAreFilesOrFoldersOfAFolder) {
  const DataFolder folder;
  folder.write("d/train-00000-of-00002.jsonl", std::string(kChat) + "\n");
  folder.write("d/train-00001-of-00002.jsonl", std::string(kChat) + "\n");
  folder.write("d/test.jsonl", std::string(kChat) + "\n");
  const auto split = [&](const std::string& path, const std::string& name) {
    return DatasetEntry{.path = folder / path, .split = name};
  };
  EXPECT_THAT(rows_of(split("d", "train")),
              ElementsAre("messages train-00000-of-00002.jsonl:1", "messages train-00001-of-00002.jsonl:1"));
  EXPECT_THAT(rows_of(split("d", "test")), ElementsAre("messages test.jsonl:1"));
  EXPECT_THAT(error_of(split("d", "")),
              AllOf(HasSubstr("the folder holds the splits test, train"), HasSubstr("split: train")));
  EXPECT_THAT(error_of(split("d", "tests")),
              AllOf(HasSubstr("no split 'tests'. Did you mean 'test'?"), HasSubstr("it holds test, train")));
  EXPECT_THAT(rows_of(split("d", "train[1:]")), ElementsAre("messages train-00001-of-00002.jsonl:1"));
  EXPECT_THAT(error_of(split("d", "train+test")), HasSubstr("is not a name"));
  folder.write("e/train/a.jsonl", std::string(kChat) + "\n");
  folder.write("e/test/b.jsonl", std::string(kChat) + "\n");
  EXPECT_THAT(rows_of(split("e", "test")), ElementsAre("messages b.jsonl:1"));
  EXPECT_THAT(error_of(split("e", "")), AllOf(HasSubstr("no data file"), HasSubstr("it holds test, train")));
  folder.write("f/data/train-0.csv", "text\nx\n");
  folder.write("f/README.md", "about");
  EXPECT_THAT(rows_of(split("f", "train")), ElementsAre("text train-0.csv:2"));
  EXPECT_THAT(rows_of(split("d/test.jsonl", "train")), ElementsAre("messages test.jsonl:1"));
  EXPECT_THAT(error_of(split("d/test.jsonl", "test")), HasSubstr("the file has no split 'test'"));
  folder.write("g.json", R"({"train": [{"text": "a"}], "test": [{"text": "b"}, {"text": "c"}]})");
  EXPECT_THAT(rows_of(split("g.json", "test")), ElementsAre("text g.json:1", "text g.json:1"));
}

TEST(DatasetReader, SaysWhatCannotBeRead) {
  const DataFolder folder;
  EXPECT_THAT(error_of({folder / "none.jsonl"}), HasSubstr("there is no such file or folder"));
  EXPECT_THAT(error_of({folder.write("a.arrow", "x")}),
              AllOf(HasSubstr(".arrow files are not read"), HasSubstr("to_json or to_parquet")));
  EXPECT_THAT(error_of({folder.write("a.jsonl.bz2", "x")}), HasSubstr("decompress it first"));
  folder.write("f/x.bin", "a,b");
  EXPECT_THAT(error_of({folder / "f"}), AllOf(HasSubstr("holds no data file"), HasSubstr("it holds x.bin")));
  folder.write("h/data-00000-of-00001.arrow", "x");
  folder.write("h/more/y", "x");
  EXPECT_THAT(error_of({folder / "h"}), HasSubstr(".arrow files are not read"));
}

TEST(DatasetReader, MappedColumnsMustBeThere) {
  const DataFolder folder;
  const auto mapped = [&](const std::string& path, const std::string& json) {
    return DatasetEntry{.path = path, .mapping = ColumnMapping::parse(Json::parse(json), "run.yaml")};
  };
  const std::string csv = folder.write("d.csv", "ask,reply\nq,a\n");
  EXPECT_THAT(rows_of(mapped(csv, R"({"prompt": "ask", "response": "reply"})")),
              ElementsAre("prompt_response d.csv:2"));
  EXPECT_THAT(error_of(mapped(csv, R"({"prompt": "ask", "response": "reply", "system": "rules"})")),
              HasSubstr("the column 'rules' is missing, which column_mapping reads as system"));
  const std::string jsonl = folder.write("d.jsonl",
                                         "{\"ask\": \"q\", \"reply\": \"a\"}\n"
                                         "{\"ask\": \"q\", \"reply\": \"a\", \"rules\": \"s\"}\n");
  const std::string three = R"({"prompt": "ask", "response": "reply", "system": "rules"})";
  EXPECT_THAT(rows_of(mapped(jsonl, three)), testing::SizeIs(2));
  DatasetEntry first = mapped(jsonl, three);
  first.samples = 1;
  EXPECT_THAT(error_of(first), HasSubstr("no row has the column 'rules', which column_mapping names"));
  EXPECT_THAT(error_of(mapped(jsonl, R"({"prompt": "ask", "response": "reply", "system": "rule"})")),
              HasSubstr("Did you mean 'rules'?"));
}

TEST(DatasetReader, NamesComeFromPaths) {
  EXPECT_EQ(name_from_path("data/faq.csv"), "faq");
  EXPECT_EQ(name_from_path("data/tools/"), "tools");
  EXPECT_EQ(name_from_path("data/v1.2"), "v1.2");
  EXPECT_EQ(name_from_path("."), "data");
}

std::string chat_row(const std::string& question, const std::string& answer) {
  return Json{{"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}}
             .dump() +
         "\n";
}

std::string chat_rows(int count) {
  std::string rows;
  for (int i = 0; i < count; ++i) rows += chat_row(fmt::format("question {}", i), fmt::format("answer {}", i * i));
  return rows;
}

std::string token_rows(int count, int length = 4) {
  std::string rows;
  for (int i = 0; i < count; ++i) {
    rows += fmt::format("{{\"input_ids\": [{}]}}\n", fmt::join(std::vector<int>(static_cast<size_t>(length), i), ","));
  }
  return rows;
}

class DatasetBuilding : public testing::Test {
 protected:
  DatasetBuilding() {
    options_.vocab_size = 5000;
    options_.max_length = 64;
  }

  TrainingData build(const Tokenizer* tokenizer = &shared_tokenizer()) {
    return build_training_data(options_, tokenizer, pool_);
  }
  std::string error(const Tokenizer* tokenizer = &shared_tokenizer()) {
    return refusal([&] { build(tokenizer); });
  }
  /// Trains on one file with this content.
  void give(const std::string& content, const std::string& name = "chat.jsonl") {
    options_.datasets = {{folder_.write(name, content)}};
  }

  static const Tokenizer& shared_tokenizer() {
    static const Tokenizer tokenizer = qwen_tokenizer();
    return tokenizer;
  }

  DataFolder folder_;
  DataOptions options_;
  ThreadPool pool_{3};
};

TEST_F(DatasetBuilding, ReportsWhatBecameOfEveryRow) {
  give(chat_rows(300) + chat_row("long", std::string(400, 'x') + "!"));
  const TrainingData data = build();
  EXPECT_EQ(data.train.size(), 300);
  EXPECT_EQ(data.eval.size(), 0);
  EXPECT_THAT(data.train_names, ElementsAre("chat"));
  ASSERT_EQ(data.train_reports.size(), 1u);
  const DatasetReport& report = data.train_reports[0];
  EXPECT_EQ(report.format, SampleFormat::kMessages);
  EXPECT_EQ(report.decision, "column 'messages' in " + folder_.path() + "/chat.jsonl:1");
  EXPECT_EQ(report.rows, 301);
  EXPECT_EQ(report.counts.kept, 300);
  EXPECT_EQ(report.counts.too_long, 1);
  EXPECT_EQ(report.counts.tokens, data.train.counts().tokens);
  EXPECT_GT(report.lengths.max, 64);
  EXPECT_LE(report.lengths.p99, 64);
  EXPECT_LE(report.lengths.p50, report.lengths.p90);
  EXPECT_GT(report.supervised_share(), 0.1);
  EXPECT_LT(report.supervised_share(), 0.5);
  EXPECT_TRUE(data.warnings.empty());
}

TEST_F(DatasetBuilding, DoesNotDependOnThreadsOrBatches) {
  give(chat_rows(5000));
  ThreadPool one(1), four(4);
  const auto a = build_training_data(options_, &shared_tokenizer(), one);
  const auto b = build_training_data(options_, &shared_tokenizer(), four);
  EXPECT_EQ(a.train.size(), 5000);
  EXPECT_EQ(a.train.fingerprint(), b.train.fingerprint());
}

TEST_F(DatasetBuilding, MixesDataSetsAndLimitsTheirRows) {
  options_.datasets = {
      {folder_.write("a/chat.jsonl", chat_rows(20)), SampleFormat::kAuto, 5},
      {folder_.write("b/chat.jsonl", chat_rows(3))},
      {folder_.write("t.json", "[{\"input_ids\": [1, 2, 3]}]"), SampleFormat::kTokenized, {}, "tokens"}};
  const TrainingData data = build();
  EXPECT_THAT(data.train_names, ElementsAre("chat", "chat_2", "tokens"));
  EXPECT_EQ(data.train.size(), 9);
  EXPECT_EQ(data.train[4].dataset, 0);
  EXPECT_EQ(data.train[5].dataset, 1);
  EXPECT_EQ(data.train[8].dataset, 2);
  EXPECT_EQ(data.train_reports[1].rows, 3);
  EXPECT_EQ(data.train_reports[2].counts.tokens, 3);
  options_.datasets[0].name = options_.datasets[1].name = "x";
  EXPECT_THAT(error(), HasSubstr("two data sets have the name 'x'"));
}

TEST_F(DatasetBuilding, ReportsProgress) {
  give(chat_rows(3000));
  std::vector<int64_t> rows;
  build_training_data(options_, &shared_tokenizer(), pool_, [&](const DataProgress& progress) {
    EXPECT_EQ(progress.dataset, "chat");
    EXPECT_LE(progress.bytes_read, progress.bytes_total);
    rows.push_back(progress.rows);
  });
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows.back(), 3000);
}

TEST_F(DatasetBuilding, SplitsOffValidationRowsByTheSeed) {
  give(token_rows(100));
  const auto eval_tokens = [&] {
    const TrainingData data = build();
    EXPECT_EQ(data.train.size() + data.eval.size(), 100);
    EXPECT_EQ(data.eval_names, data.train_names);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < data.eval.size(); ++i) tokens.push_back(data.eval[i].input_ids[0]);
    return tokens;
  };
  options_.val_split = 0.1;
  const auto first = eval_tokens();
  EXPECT_EQ(first.size(), 10u);
  EXPECT_EQ(eval_tokens(), first);
  options_.data_seed = 43;
  EXPECT_NE(eval_tokens(), first);
  options_.val_split = 7;
  EXPECT_EQ(eval_tokens().size(), 7u);
  options_.val_split = 0.0001;
  EXPECT_EQ(eval_tokens().size(), 1u);
  options_.val_split = 100;
  EXPECT_THAT(error(), HasSubstr("val_split 100 leaves none of the 100 samples to train on"));
}

TEST_F(DatasetBuilding, PartsOfOneRowAreNotSpreadOverTrainingAndValidation) {
  give(token_rows(50, 10));
  options_.max_length = 4;
  options_.overlength = Overlength::kSplit;
  options_.val_split = 10;
  const TrainingData data = build(nullptr);
  EXPECT_EQ(data.eval.size(), 30);
  EXPECT_EQ(data.train.size(), 120);
}

TEST_F(DatasetBuilding, ReadsEvaluationDataApart) {
  give(chat_rows(10));
  options_.eval_datasets = {{folder_.write("val.jsonl", chat_rows(4))}};
  const TrainingData data = build();
  EXPECT_EQ(data.train.size(), 10);
  EXPECT_EQ(data.eval.size(), 4);
  EXPECT_THAT(data.eval_names, ElementsAre("val"));
  EXPECT_EQ(data.eval_reports[0].rows, 4);
}

TEST_F(DatasetBuilding, RefusesDataWithNothingInIt) {
  EXPECT_THAT(error(), HasSubstr("there is no data set to train on"));
  give("\n\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("the data set is empty"), HasSubstr("chat.jsonl")));
  give(R"({"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]})");
  EXPECT_THAT(error(), AllOf(HasSubstr("the data set 'chat' has no sample to train on"),
                             HasSubstr("1 row: no message has the role 'assistant' (roles: user, bot)"),
                             HasSubstr("chat.jsonl:1")));
  options_.max_length = 3;
  give(chat_rows(5));
  EXPECT_THAT(error(), AllOf(HasSubstr("5 rows: longer than max_length (the longest has "),
                             HasSubstr("set max_length: "), HasSubstr("overlength: truncate_right")));
  options_.datasets = {{folder_.write("book.txt", "A long time ago.")}};
  EXPECT_THAT(error(), HasSubstr("set overlength: split"));
  give(chat_rows(5));
  options_.overlength = Overlength::kTruncateRight;
  EXPECT_THAT(error(), HasSubstr("their supervised tokens were cut off"));
  options_.datasets = {{folder_ / "absent.jsonl"}};
  EXPECT_THAT(error(), HasSubstr("there is no such file or folder"));
}

TEST_F(DatasetBuilding, StopsIfNothingIsLearntOfMoreThanOnePercentOfTheRows) {
  const std::string unanswered = R"({"messages": [{"role": "user", "content": "a"}]})"
                                 "\n";
  give(chat_rows(99) + unanswered);
  const TrainingData data = build();
  EXPECT_EQ(data.train.size(), 99);
  EXPECT_EQ(data.train_reports[0].unsupervised_rows(), 1);
  EXPECT_THAT(data.train_reports[0].nothing_learnt[0].first_where, HasSubstr("chat.jsonl:100"));
  give(chat_rows(98) + unanswered + unanswered);
  EXPECT_THAT(error(), AllOf(HasSubstr("2 of the 100 rows (2.0 %) of 'chat' have no supervised tokens"),
                             HasSubstr("no message has the role 'assistant'"), HasSubstr("chat.jsonl:99")));
  options_.chat.train_on = TrainOn::kAll;
  EXPECT_EQ(build().train.size(), 100);
}

TEST_F(DatasetBuilding, RowsThatAskNotToBeLearntAreNoError) {
  const std::string masked =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": false}]})"
      "\n";
  give(chat_rows(5) + masked + masked);
  const TrainingData data = build();
  EXPECT_EQ(data.train.size(), 5);
  EXPECT_EQ(data.train_reports[0].unsupervised_rows(), 2);
}

TEST_F(DatasetBuilding, StopsIfTheShareOfSupervisedTokensIsNoMasksWork) {
  options_.max_length = 100'000;
  const std::string everything = "{% for m in messages %}{{ m.content }}{% endfor %}";
  std::string words;
  for (int i = 0; i < 3000; ++i) words += fmt::format("word {} ", i);
  give(chat_row(words, "ok") + chat_row(words, "ok"));
  EXPECT_THAT(error(), AllOf(HasSubstr("of the tokens of 'chat' are supervised"), HasSubstr("--debug 3")));
  options_.chat.chat_template = everything;
  give(R"({"messages": [{"role": "assistant", "content": ")" + words + R"("}]})");
  EXPECT_THAT(error(), HasSubstr("set train_on: all"));
  options_.tolerant = true;
  EXPECT_THAT(build().warnings, testing::Contains(HasSubstr("of the tokens of 'chat' are supervised")));
  options_.tolerant = false;
  options_.chat.train_on = TrainOn::kAll;
  EXPECT_EQ(build().train.size(), 1);
}

TEST_F(DatasetBuilding, TheFirstBadRowIsTheOneNamed) {
  give(chat_rows(50) + "{\"messages\": 3}\n" + chat_rows(20) + "{broken\n");
  for (int i = 0; i < 5; ++i) EXPECT_THAT(error(), HasSubstr("chat.jsonl:51"));
}

TEST_F(DatasetBuilding, WarningsAreCountedOnce) {
  const std::string asks = R"({"messages": [{"role": "user", "content": "a", "train": true},
      {"role": "assistant", "content": "b"}]})";
  std::string row = asks;
  std::erase(row, '\n');
  give(chat_rows(3) + row + "\n" + row + "\n");
  const TrainingData data = build();
  EXPECT_THAT(data.warnings, ElementsAre(AllOf(HasSubstr("other roles than assistant"), HasSubstr("2 rows, first: "),
                                               HasSubstr("chat.jsonl:4"))));
}

TEST_F(DatasetBuilding, ToolsThatTheTemplateDoesNotShowAreCounted) {
  const std::string row = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], )"
                          R"("tools": [{"type": "function", "function": {"name": "f"}}]})";
  give(chat_rows(3) + row + "\n" + row + "\n");
  EXPECT_THAT(build().warnings, ElementsAre(AllOf(HasSubstr("the template renders no tools"),
                                                  HasSubstr("2 rows, first: "), HasSubstr("chat.jsonl:4"))));
}

TEST_F(DatasetBuilding, PreviewShowsTheTextAndWhatIsLearnt) {
  give(chat_row("Wie spät?", "Élan vital ✓"));
  const TrainingData data = build();
  std::string text, learnt;
  for (const MaskPiece& piece : preview_sample(data.train, 0, &shared_tokenizer())) {
    text += piece.text;
    if (piece.supervised) learnt += piece.text;
  }
  EXPECT_EQ(text, "<|im_start|>user\nWie spät?<|im_end|>\n<|im_start|>assistant\nÉlan vital ✓<|im_end|>\n");
  EXPECT_EQ(learnt, "Élan vital ✓<|im_end|>");
  options_.datasets = {{folder_.write("t.jsonl", "{\"input_ids\": [7, 8]}")}};
  const auto tokens = preview_sample(build(nullptr).train, 0, nullptr);
  ASSERT_EQ(tokens.size(), 2u);
  EXPECT_EQ(tokens[1].text, "8 ");
  EXPECT_FALSE(tokens[0].supervised);
  EXPECT_TRUE(tokens[1].supervised);
}

TEST_F(DatasetBuilding, PreviewOfALongStretchIsItsEnds) {
  std::string answer;
  for (int i = 0; i < 500; ++i) answer += "Grüße ✓ ";
  options_.max_length = 100'000;
  give(chat_row("Wie spät?", answer));
  const TrainingData data = build();
  const std::vector<MaskPiece> whole = preview_sample(data.train, 0, &shared_tokenizer());
  const std::vector<MaskPiece> ends = preview_sample(data.train, 0, &shared_tokenizer(), 40);
  ASSERT_EQ(whole.size(), 3u);
  ASSERT_EQ(ends.size(), 5u);
  EXPECT_EQ(ends[0].text, whole[0].text);
  EXPECT_TRUE(whole[1].text.starts_with(ends[1].text) && whole[1].text.ends_with(ends[3].text)) << ends[3].text;
  EXPECT_EQ(ends[1].tokens + ends[3].tokens, 40);
  EXPECT_FALSE(ends[2].shown);
  EXPECT_EQ(ends[2].text, "");
  EXPECT_EQ(ends[2].tokens, whole[1].tokens - 40);
}

TEST_F(DatasetBuilding, PackedLabelsNeverCrossDocuments) {
  give(chat_rows(60));
  const TrainingData data = build();
  Loader loader(data.train, {});
  int64_t supervised = 0;
  EXPECT_LT(loader.steps_in_epoch(0), 60);  // some packs contain several samples
  for (int64_t step = 0; step < loader.steps_in_epoch(0); ++step) {
    for (const MicroBatch& batch : loader.step(step).micro_batches) {
      supervised += batch.supervised();
      for (const int32_t row : batch.rows) {
        ASSERT_LT(row + 1, batch.tokens());
        EXPECT_EQ(batch.sample_ids[static_cast<size_t>(row)], batch.sample_ids[static_cast<size_t>(row) + 1]);
      }
    }
  }
  EXPECT_EQ(supervised, data.train.counts().supervised);
}

TEST_F(DatasetBuilding, RandomRowsAreRefusedOrReadButNeverCrash) {
  static constexpr std::array<const char*, 24> kPieces = {R"({"messages":)",
                                                          R"([{"role":)",
                                                          R"("user")",
                                                          R"("assistant")",
                                                          R"(,"content":)",
                                                          R"("text")",
                                                          R"(}])",
                                                          R"(})",
                                                          R"({"prompt":)",
                                                          R"("completion":)",
                                                          R"({"input_ids":)",
                                                          R"([1,2,3])",
                                                          R"(,"labels":)",
                                                          R"(null)",
                                                          R"(,"weight":)",
                                                          R"(-1.5)",
                                                          R"(,"train":)",
                                                          R"(true)",
                                                          R"(,"tools":)",
                                                          R"([])",
                                                          R"({})",
                                                          R"("\u00e9\ud83d\ude00")",
                                                          R"(,)",
                                                          "\n"};
  for (uint64_t seed = 0; seed < 300; ++seed) {
    PhiloxSequence random(seed);
    std::string content = seed % 3 == 0 ? R"({"messages":[{"role":"assistant","content":"a")" : "";
    for (uint64_t i = 0, count = random.below(20); i < count; ++i) content += kPieces[random.below(kPieces.size())];
    if (seed % 3 == 0) content += "}]}";
    give(content);
    options_.datasets[0].format = static_cast<SampleFormat>(random.below(8));
    refusal([&] { build(); });
  }
}

TEST(LengthSummary, GivesNearestRanks) {
  std::vector<int32_t> lengths;
  for (int32_t i = 200; i > 0; --i) lengths.push_back(i);
  const LengthSummary summary = summarise_lengths(lengths);
  EXPECT_EQ(summary.p50, 100);
  EXPECT_EQ(summary.p90, 180);
  EXPECT_EQ(summary.p99, 198);
  EXPECT_EQ(summary.max, 200);
  EXPECT_EQ(summarise_lengths({3}).p50, 3);
  EXPECT_EQ(summarise_lengths({}).max, 0);
}

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
