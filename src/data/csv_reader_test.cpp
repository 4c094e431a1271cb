#include "data/csv_reader.h"

#include <gmock/gmock.h>

#include <chrono>

#include "core/philox.h"
#include "data/data_testing.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// "line:row as JSON" of each row.
std::vector<std::string> rows_of(const std::string& content, const std::string& name = "d.csv") {
  const DataFolder folder;
  CsvReader reader(folder.write(name, content), {}, 10'000);
  std::vector<std::string> rows;
  for (RawRow row; reader.next(row);) rows.push_back(std::to_string(row.line) + ":" + parse_row(row).dump());
  return rows;
}

std::string error_of(const std::string& content, const std::string& name = "d.csv") {
  return refusal([&] { rows_of(content, name); });
}

TEST(CsvReader, FieldsAreTextUnderTheNamesOfTheHeader) {
  EXPECT_THAT(rows_of("b,a\n1,x y\n,\n"), ElementsAre(R"(2:{"b":"1","a":"x y"})", R"(3:{"b":"","a":""})"));
  EXPECT_THAT(rows_of("prompt, question , response\np, q,r\n"),
              ElementsAre(R"(2:{"prompt":"p","question":" q","response":"r"})"));
}

TEST(CsvReader, ManyColumnsTakeATimeThatGrowsWithThem) {
  std::string header, fields;
  for (int i = 0; i < 100'000; ++i) {
    header += (i ? ",c" : "c") + std::to_string(i);
    fields += i ? ",1" : "1";
  }
  const auto begin = std::chrono::steady_clock::now();
  const DataFolder folder;
  CsvReader reader(folder.write("d.csv", header + "\n" + fields + "\n"));
  RawRow row;
  ASSERT_TRUE(reader.next(row));
  EXPECT_EQ(parse_row(row).size(), 100'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(CsvReader, QuotedFieldsHoldDelimitersLineEndsAndQuotes) {
  EXPECT_THAT(rows_of("a,b\r\n\"x, \"\"y\"\"\r\nz\",\"\"\r\n\"1\",2\r\n"),
              ElementsAre(R"(2:{"a":"x, \"y\"\r\nz","b":""})", R"(4:{"a":"1","b":"2"})"));
  EXPECT_THAT(rows_of("\"a\",\"b\"\n\"\"\"\",\"\n\"\n"), ElementsAre(R"(2:{"a":"\"","b":"\n"})"));
}

TEST(CsvReader, ByteOrderMarksBlankLinesAndMissingLastLineEndsAreFine) {
  EXPECT_THAT(rows_of("\xEF\xBB\xBF"
                      "a,b\r\n\r\n1,2\r\n\n3,4"),
              ElementsAre(R"(3:{"a":"1","b":"2"})", R"(5:{"a":"3","b":"4"})"));
  EXPECT_THAT(rows_of(""), ElementsAre());
  EXPECT_THAT(rows_of("a,b\n"), ElementsAre());
}

TEST(CsvReader, UnnamedColumnsAreNotRead) {
  EXPECT_THAT(rows_of(",a,\n0,x,\n1,y,z\n"), ElementsAre(R"(2:{"a":"x"})", R"(3:{"a":"y"})"));
}

TEST(CsvReader, TabsPartTheFieldsOfTsv) {
  EXPECT_THAT(rows_of("a\tb\n1,5\tsay \"x\"\n\"q\t\"\"\"\tr\n", "d.tsv"),
              ElementsAre(R"(2:{"a":"1,5","b":"say \"x\""})", R"(3:{"a":"q\t\"","b":"r"})"));
}

TEST(CsvReader, RaggedRowsAreNamedWithTheirLine) {
  EXPECT_THAT(error_of("a,b\n1,2\n\"x\ny\",3\n4\n"),
              AllOf(HasSubstr("the row has 1 fields, the header has 2"), HasSubstr("d.csv:5\n"),
                    HasSubstr("write an empty field for each value that is missing")));
  EXPECT_THAT(error_of("a,b\n1,2,3\n"), AllOf(HasSubstr("the row has 3 fields, the header has 2"),
                                              HasSubstr("d.csv:2\n"), HasSubstr("must be in quotes")));
}

TEST(CsvReader, BrokenQuotesAreNamedWithTheirLine) {
  EXPECT_THAT(error_of("a,b\n1,2\n\"x,3\n4,5\n"),
              AllOf(HasSubstr("a quote is opened here and never closed"), HasSubstr("d.csv:3\n")));
  EXPECT_THAT(error_of("a,b\n\"x\" ,3\n"),
              AllOf(HasSubstr("there is text after the closing quote"), HasSubstr("d.csv:2\n")));
  EXPECT_THAT(error_of("a,b\n5\" disk,3\n"),
              AllOf(HasSubstr("a quote inside a field that does not begin with one"), HasSubstr("double each quote")));
  EXPECT_THAT(error_of("a,b\n1\r2,3\n"), HasSubstr("a carriage return without a line feed"));
}

TEST(CsvReader, SemicolonsAndTabsAreRecognisedInTheHeader) {
  const auto rows = [](const std::string& content, std::optional<char> delimiter = {}) {
    const DataFolder folder;
    CsvReader reader(folder.write("d.csv", content), delimiter);
    std::string all;
    for (RawRow row; reader.next(row);) all += parse_row(row).dump();
    return all;
  };
  const std::string expected = R"({"a":"1","b":"x,y"})";
  EXPECT_EQ(rows("a;b\n1;x,y\n"), expected);
  EXPECT_EQ(rows("a\tb\n1\tx,y\n"), expected);
  EXPECT_EQ(rows("a;b\n1;\"x,y\"\n"), expected);
  EXPECT_EQ(rows("\"a, too\";b\n1;2\n"), R"({"a, too":"1","b":"2"})");
  EXPECT_EQ(rows("a|b\n1|x,y\n", '|'), expected);
  EXPECT_EQ(rows("a;x,b\n1,2\n"), R"({"a;x":"1","b":"2"})");
  EXPECT_THAT(error_of("a;b\n5\" disk;3\n"), HasSubstr("a quote inside a field"));
}

TEST(CsvReader, ADelimiterIsOneCharacter) {
  EXPECT_EQ(delimiter_of("", "d"), std::nullopt);
  EXPECT_EQ(delimiter_of("tab", "d"), '\t');
  EXPECT_EQ(delimiter_of("\\t", "d"), '\t');
  EXPECT_EQ(delimiter_of(";", "d"), ';');
  for (const char* wrong : {"a", "\"", ";;", "é"}) {
    EXPECT_THAT(refusal([&] { delimiter_of(wrong, "d"); }), HasSubstr("not a character that parts fields")) << wrong;
  }
}

TEST(CsvReader, HeadersThatCannotBeMeantAreRefused) {
  EXPECT_THAT(error_of("a,b, a\n1,2,3\n"), AllOf(HasSubstr("names the column 'a' twice"), HasSubstr("d.csv:1\n")));
  EXPECT_THAT(error_of("prompt,response\na,b\n", "d.tsv"),
              AllOf(HasSubstr("the header is one column: 'prompt,response'"), HasSubstr("delimiter: \",\"")));
  EXPECT_THAT(error_of(",,\n1,2,3\n"), HasSubstr("the header names no column"));
}

TEST(CsvReader, WhatIsNotTextIsRefusedWithItsLine) {
  EXPECT_THAT(error_of("a\n\"x\n\xFF\"\n"), AllOf(HasSubstr("byte 4 of the row is not UTF-8"), HasSubstr("d.csv:3\n")));
  EXPECT_THAT(error_of("\xC3(,b\n1,2\n"), HasSubstr("the header is not UTF-8"));
  EXPECT_THAT(error_of(std::string("\xFF\xFE"
                                   "a\0",
                                   4)),
              HasSubstr("the file is UTF-16"));
  EXPECT_THAT(error_of("a\n\"" + std::string(20'000, 'x') + "\n"), HasSubstr("the row is longer than 10000 bytes"));
}

TEST(CsvReader, AFieldOfTenMegabytesIsRead) {
  const DataFolder folder;
  const std::string field(10 << 20, 'x');
  CsvReader reader(folder.write("d.csv", "a,b\n\"" + field + "\",1\n"));
  RawRow row;
  ASSERT_TRUE(reader.next(row));
  EXPECT_EQ(parse_row(row)["a"].get<std::string>().size(), field.size());
}

/// RFC 4180, written from its grammar.
std::string written(const std::vector<std::vector<std::string>>& records, PhiloxSequence& random) {
  std::string text;
  for (const auto& record : records) {
    for (size_t i = 0; i < record.size(); ++i) {
      std::string field = record[i];
      if (field.find_first_of(",\"\r\n") != std::string::npos || random.below(2)) {
        for (size_t at = 0; (at = field.find('"', at)) != std::string::npos; at += 2) field.insert(at, 1, '"');
        field = "\"" + field + "\"";
      }
      text += (i ? "," : "") + field;
    }
    text += random.below(2) ? "\r\n" : "\n";
  }
  return text;
}

TEST(CsvReader, ReadsBackWhatIsWrittenByTheRules) {
  static constexpr std::string_view kBytes = "ab,\"\r\n ;\t";
  for (uint64_t seed = 0; seed < 200; ++seed) {
    PhiloxSequence random(seed);
    std::vector<std::vector<std::string>> records = {{"x", "y", "z"}};
    for (uint64_t row = 0, rows = random.below(5); row < rows; ++row) {
      auto& record = records.emplace_back(3);
      for (std::string& field : record) {
        for (uint64_t i = 0, size = random.below(6); i < size; ++i) field += kBytes[random.below(kBytes.size())];
      }
    }
    const DataFolder folder;
    CsvReader reader(folder.write("d.csv", written(records, random)));
    for (size_t i = 1; i < records.size(); ++i) {
      RawRow row;
      ASSERT_TRUE(reader.next(row)) << seed;
      const Json object = parse_row(row);
      const std::vector<std::string> fields = {object["x"], object["y"], object["z"]};
      EXPECT_EQ(fields, records[i]) << seed;
    }
    RawRow row;
    EXPECT_FALSE(reader.next(row)) << seed;
  }
}

TEST(CsvReader, RandomBytesAreRefusedOrReadButNeverCrash) {
  static constexpr std::string_view kBytes = "ab,\"\r\n\t;\xC3\xA9\xFF";
  for (uint64_t seed = 0; seed < 400; ++seed) {
    PhiloxSequence random(seed);
    std::string content = random.below(2) ? "a,b\n" : "";
    for (uint64_t i = 0, size = random.below(60); i < size; ++i) content += kBytes[random.below(kBytes.size())];
    refusal([&] { rows_of(content, seed % 2 ? "d.csv" : "d.tsv"); });
  }
}

}  // namespace
}  // namespace hone
