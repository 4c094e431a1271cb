#include "data/dataset_reader.h"

#include <gmock/gmock.h>

#include "data/data_testing.h"

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
  EXPECT_THAT(error_of({"nobody-has-this/gsm8k"}),
              HasSubstr("hf download --repo-type dataset nobody-has-this/gsm8k --local-dir gsm8k"));
  EXPECT_THAT(error_of({folder / "no/chat.jsonl"}), testing::Not(HasSubstr("hf download")));
}

TEST(DatasetReader, ADelimiterIsForCsv) {
  const DataFolder folder;
  DatasetEntry entry{folder.write("a.csv", "question|answer\nq, too|a\n")};
  entry.delimiter = '|';
  EXPECT_THAT(rows_of(entry), ElementsAre("prompt_response a.csv:2"));
  entry.path = folder.write("a.jsonl", kChat);
  EXPECT_THAT(error_of(entry), HasSubstr("delimiter is stated, and the data set has no CSV file"));
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
  EXPECT_THAT(error_of(split("d", "train[:10%]")), HasSubstr("is not a name"));
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
  EXPECT_THAT(error_of({folder.write("a.jsonl.bz2", "x")}), HasSubstr("unpack it first"));
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

}  // namespace
}  // namespace hone
