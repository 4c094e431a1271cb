#include "data/parquet_reader.h"

#include <gmock/gmock.h>

#include "data/data_testing.h"
#include "data/dataset_reader.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string parquet(const std::string& name) { return fixture("data/" + name + ".parquet"); }

std::vector<std::string> rows_of(const std::string& path) {
  const auto reader = open_parquet(path);
  std::vector<std::string> rows;
  for (RawRow row; reader->next(row);) rows.push_back(parse_row(row).dump());
  return rows;
}

class Parquet : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_parquet()) GTEST_SKIP() << "built without Parquet: make parquet";
  }
};

// The files are written by tests/fixtures/data/make_parquet.py, with all the compressions and encodings in use.

TEST_F(Parquet, NestedColumnsBecomeJsonWithoutTheNullsOfOtherRows) {
  EXPECT_THAT(rows_of(parquet("chat")),
              ElementsAre(R"({"id":1,"messages":[{"role":"user","content":"Capital of France?"},)"
                          R"({"role":"assistant","content":"Paris.","weight":0.5}],)"
                          R"("tools":[{"name":"f","parameters":{"z":1,"a":2}}],"kind":"x","day":"2024-05-01",)"
                          R"("flag":true,"image":null})",
                          R"({"id":null,"messages":[{"role":"user","content":"Élan ✓"},)"
                          R"({"role":"assistant","content":"vital"}],)"
                          R"("tools":null,"kind":"y","day":"2024-05-01","flag":false,"image":null})",
                          R"({"id":3,"messages":[{"role":"user","content":"n"},{"role":"user","content":"n"},)"
                          R"({"role":"user","content":"n"},{"role":"user","content":"n"},)"
                          R"({"role":"user","content":"n"},{"role":"assistant","content":"m"}],)"
                          R"("tools":[],"kind":"x","day":"2024-05-01","flag":null,"image":null})"));
  EXPECT_THAT(rows_of(parquet("tokens")),
              ElementsAre(R"({"input_ids":[5,17,9],"labels":[-100,17,9]})", R"({"input_ids":[2,3],"labels":[2,3]})"));
  EXPECT_THAT(rows_of(parquet("no_rows")), ElementsAre());
}

TEST_F(Parquet, RowsOfManyGroupsComeInOrder) {
  const DatasetEntry entry = {parquet("many")};
  DatasetReader reader(entry);
  int64_t count = 0;
  for (DatasetRow row; reader.next(row); ++count) {
    EXPECT_EQ(row.format, SampleFormat::kPromptResponse);
    EXPECT_EQ(parse_row(row.raw)["response"], std::to_string(count));
    EXPECT_EQ(row.where(), entry.path + ", row " + std::to_string(count + 1));
  }
  EXPECT_EQ(count, 3000);
  EXPECT_EQ(reader.bytes_read(), reader.bytes_total());
}

TEST_F(Parquet, ErrorsNameTheRow) {
  EXPECT_THAT(refusal([] { rows_of(parquet("not_utf8")); }), HasSubstr("not_utf8.parquet, row 2"));
  DatasetEntry entry = {parquet("tokens"), SampleFormat::kMessages};
  EXPECT_THAT(refusal([&] {
                DatasetReader reader(entry);
                for (DatasetRow row; reader.next(row);) read_row(row, entry.mapping);
              }),
              AllOf(HasSubstr("the column 'messages' is missing"), HasSubstr("tokens.parquet, row 1")));
}

TEST_F(Parquet, WhatIsNoParquetIsRefused) {
  const DataFolder folder;
  const std::string whole = read_fixture("data/chat.parquet");
  EXPECT_THAT(refusal([&] { rows_of(folder.write("a.parquet", "{}")); }),
              AllOf(HasSubstr("the file cannot be read as Parquet"), HasSubstr("a.parquet")));
  EXPECT_THAT(refusal([&] { rows_of(folder.write("b.parquet", "")); }), HasSubstr("cannot be read as Parquet"));
  EXPECT_THAT(refusal([&] { rows_of(folder / "none.parquet"); }), HasSubstr("cannot be read as Parquet"));
  for (size_t size = 1; size < whole.size(); size += 97) {
    EXPECT_NE(refusal([&] { rows_of(folder.write("c.parquet", whole.substr(0, size))); }), "") << size;
  }
}

TEST_F(Parquet, DamagedFilesAreRefusedOrReadButNeverCrash) {
  const DataFolder folder;
  const std::string whole = read_fixture("data/chat.parquet");
  ASSERT_EQ(refusal([&] { rows_of(folder.write("d.parquet", whole)); }), "");
  for (size_t at = 0; at < whole.size(); at += 13) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    refusal([&] { rows_of(folder.write("d.parquet", damaged)); });
  }
}

TEST(ParquetAbsent, SaysHowToGetIt) {
  if (has_parquet()) GTEST_SKIP() << "built with Parquet";
  EXPECT_THAT(refusal([] { rows_of(parquet("chat")); }), AllOf(HasSubstr("this program was built without Parquet"),
                                                               HasSubstr("make parquet"), HasSubstr("JSONL")));
}

}  // namespace
}  // namespace hone
