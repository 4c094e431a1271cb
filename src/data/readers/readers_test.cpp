#include <gmock/gmock.h>
#include <zlib.h>
#include <zstd.h>

#include "core/base/philox.h"
#include "core/base/processor_time_testing.h"
#include "data/dataset/data_testing.h"
#include "data/dataset/dataset_reader.h"
#include "data/readers/byte_reader.h"
#include "data/readers/csv_reader.h"
#include "data/readers/dataset_files.h"
#include "data/readers/jsonl_reader.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// "line:text" of each row.
std::vector<std::string> jsonl_rows(const std::string& path, const JsonlReader::Options& options = {}) {
  JsonlReader reader(path, options);
  std::vector<std::string> rows;
  for (RawRow row; reader.next(row);) rows.push_back(std::to_string(row.line) + ":" + row.text);
  return rows;
}

/// The error of reading and parsing all rows of a file with this content.
std::string jsonl_error(const std::string& content, const std::string& name = "d.jsonl") {
  const DataFolder folder;
  const std::string path = folder.write(name, content);
  return refusal([&] {
    JsonlReader reader(path, {.max_row_bytes = 1000});
    for (RawRow row; reader.next(row);) parse_row(row);
  });
}

TEST(JsonlReader, SkipsBlankLinesAndKeepsLineNumbers) {
  const DataFolder folder;
  EXPECT_THAT(jsonl_rows(folder.write("d.jsonl", "{\"a\":1}\n\n  \r\n{\"a\":2}\r\n{\"a\":3}")),
              ElementsAre("1:{\"a\":1}", "4:{\"a\":2}", "5:{\"a\":3}"));
  EXPECT_THAT(jsonl_rows(folder.write("empty.jsonl", "")), ElementsAre());
  EXPECT_THAT(jsonl_rows(folder.write("blank.jsonl", "\n \n")), ElementsAre());
}

TEST(JsonlReader, ToleratesAByteOrderMark) {
  const DataFolder folder;
  EXPECT_THAT(jsonl_rows(folder.write("d.jsonl", "\xEF\xBB\xBF{}\n")), ElementsAre("1:{}"));
  EXPECT_THAT(jsonl_error(std::string("\xFF\xFE{\0}\0", 6)), HasSubstr("the file is UTF-16"));
}

TEST(JsonlReader, ReadsRowsAcrossItsBuffer) {
  const DataFolder folder;
  std::string content;
  std::vector<std::string> expected;
  for (int i = 0; i < 50; ++i) {
    const std::string row = "{\"a\":\"" + std::string(70'001, static_cast<char>('a' + i % 26)) + "\"}";
    content += row + "\n";
    expected.push_back(std::to_string(i + 1) + ":" + row);
  }
  EXPECT_EQ(jsonl_rows(folder.write("d.jsonl", content)), expected);
}

TEST(JsonlReader, ReadsAnArrayElementByElement) {
  const DataFolder folder;
  const std::string path = folder.write("d.json", " [\n  {\"a\": \"x],{\\\"\"},\n  {\n    \"b\": [1, {}]}\n]\n");
  EXPECT_THAT(jsonl_rows(path), ElementsAre("2:{\"a\": \"x],{\\\"\"}", "3:{\n    \"b\": [1, {}]}\n"));
  EXPECT_THAT(jsonl_rows(folder.write("e.json", "[]")), ElementsAre());
  EXPECT_THAT(jsonl_rows(folder.write("l.json", "{\"a\":1}\n{\"a\":2}\n")), ElementsAre("1:{\"a\":1}", "2:{\"a\":2}"));
}

TEST(JsonlReader, ReadsTheOneListOfObjectsInAnObject) {
  const DataFolder folder;
  const std::string path = folder.write(
      "d.json", "{\"version\": \"1,]\", \"n\": [1, 2],\n \"data\": [\n{\"a\": 1},\n{\"a\": [{}]}],\n\"x\": 3}\n");
  EXPECT_THAT(jsonl_rows(path), ElementsAre("3:{\"a\": 1}", "4:{\"a\": [{}]}"));
  EXPECT_THAT(jsonl_rows(path, {.table = "train"}), testing::SizeIs(2));
  EXPECT_THAT(refusal([&] { jsonl_rows(path, {.table = "test"}); }), HasSubstr("the file has no list 'test'"));
}

TEST(JsonlReader, AsksWhichOfSeveralLists) {
  const DataFolder folder;
  const std::string path = folder.write("d.json", R"({"train": [{"a": 1}], "test": [{"a": 2}, {"a": 3}]})");
  EXPECT_THAT(refusal([&] { jsonl_rows(path); }),
              AllOf(HasSubstr("several lists that could be its rows"), HasSubstr("split: one of train, test")));
  EXPECT_THAT(jsonl_rows(path, {.table = "test"}), ElementsAre("1:{\"a\": 2}", "1:{\"a\": 3}"));
  EXPECT_THAT(jsonl_rows(path, {.table = "train"}), ElementsAre("1:{\"a\": 1}"));
}

TEST(JsonlReader, AnObjectWithTheColumnsOfARowIsOneRow) {
  const DataFolder folder;
  const std::string chat = "{\n\"messages\": [{\"role\": \"user\"}]\n}\n";
  EXPECT_THAT(jsonl_rows(folder.write("d.json", chat)), ElementsAre("1:" + chat));
  EXPECT_THAT(jsonl_rows(folder.write("p.json", R"({"dialog": [{"a": 1}]})"), {.columns = {"dialog"}}),
              ElementsAre(R"(1:{"dialog": [{"a": 1}]})"));
  EXPECT_THAT(jsonl_rows(folder.write("s.json", R"({"text": "a"})")), ElementsAre(R"(1:{"text": "a"})"));
  EXPECT_THAT(refusal([&] { jsonl_rows(folder / "s.json", {.table = "test"}); }),
              HasSubstr("the file has no part 'test'"));
}

TEST(JsonlReader, SaysWhatCannotBeRead) {
  const DataFolder folder;
  EXPECT_THAT(refusal([&] { JsonlReader reader(folder / "none.jsonl"); }),
              AllOf(HasSubstr("cannot be read"), HasSubstr("none.jsonl")));
}

TEST(JsonlReader, NamesFileAndLineOfBrokenRows) {
  EXPECT_THAT(jsonl_error("{\"a\":1}\n\n{\"a\": tru}\n"),
              AllOf(HasSubstr("broken JSON at column 10: "), HasSubstr("d.jsonl:3\n"), HasSubstr("one JSON object")));
  EXPECT_THAT(jsonl_error("{\"a\":1}\n{\"a\": [1, 2\n"), HasSubstr("d.jsonl:2\n"));
  EXPECT_THAT(jsonl_error("{\"a\":1}\n[1]\n"),
              AllOf(HasSubstr("a JSON array, not an object"), HasSubstr("d.jsonl:2\n")));
  EXPECT_THAT(jsonl_error("{\"a\":\"\xC3(\"}"), AllOf(HasSubstr("byte 7 of the row is not UTF-8"), HasSubstr(":1\n")));
  EXPECT_THAT(jsonl_error("{\"a\":1} {\"b\":2}"), HasSubstr("broken JSON"));
  EXPECT_THAT(jsonl_error("{\"a\":1}\n{\"a\":\"" + std::string(2000, 'x') + "\"}"),
              AllOf(HasSubstr("the row is longer than 1000 bytes"), HasSubstr("d.jsonl:2\n")));
  EXPECT_THAT(jsonl_error("{\"a\":" + std::string(300, '[') + std::string(300, ']') + "}"),
              HasSubstr("nested deeper than 256 levels"));
  EXPECT_THAT(jsonl_error("{\"a\":1e999}"), HasSubstr("broken JSON"));
}

TEST(JsonlReader, NamesTheLineInsideAnElementOfAnArray) {
  EXPECT_THAT(jsonl_error("[\n{\n\"a\": 1,\n\"b\" 2}\n]", "d.json"), HasSubstr("d.json:4\n"));
  EXPECT_THAT(jsonl_error("[{\"a\":1},\n", "d.json"), HasSubstr("the file ends before its array is closed"));
  EXPECT_THAT(jsonl_error("[{\"a\":1}]\n{}", "d.json"),
              AllOf(HasSubstr("text after the end of the array"), HasSubstr("d.json:2\n")));
  EXPECT_THAT(jsonl_error("[{\"a\":1},]", "d.json"), HasSubstr("broken JSON"));
}

TEST(JsonlReader, KeysKeepTheirOrderAndRowsStandAlone) {
  EXPECT_EQ(parse_row({R"({"z":1,"a":{"y":null,"b":2}})", "d", 1, RowSyntax::kJson, {}}).dump(),
            R"({"z":1,"a":{"y":null,"b":2}})");
}

TEST(JsonlReader, RandomBytesAreRefusedOrReadButNeverCrash) {
  const DataFolder folder;
  static constexpr std::string_view kBytes = "{}[]\",:\\ \n\r\t0123456789aeltrufns.-+\xC3\xA9\xFF\xEF\xBB\xBF";
  for (uint64_t seed = 0; seed < 400; ++seed) {
    PhiloxSequence random(seed);
    std::string content;
    const uint64_t size = random.below(200);
    for (uint64_t i = 0; i < size; ++i) {
      content += random.below(8) == 0 ? static_cast<char>(random.below(256)) : kBytes[random.below(kBytes.size())];
    }
    if (random.below(2)) content = "[" + content;
    if (random.below(3) == 0) content = "{\"a\":" + content;
    const std::string path = folder.write(seed % 2 ? "d.json" : "d.jsonl", content);
    try {
      JsonlReader reader(path, {.max_row_bytes = 150});
      for (RawRow row; reader.next(row);) EXPECT_TRUE(parse_row(row).is_object());
    } catch (const UserError&) {
      // Any other exception fails the test.
    }
  }
}

/// "line:row as JSON" of each row.
std::vector<std::string> csv_rows(const std::string& content, const std::string& name = "d.csv") {
  const DataFolder folder;
  CsvReader reader(folder.write(name, content), {}, 10'000);
  std::vector<std::string> rows;
  for (RawRow row; reader.next(row);) rows.push_back(std::to_string(row.line) + ":" + parse_row(row).dump());
  return rows;
}

std::string csv_error(const std::string& content, const std::string& name = "d.csv") {
  return refusal([&] { csv_rows(content, name); });
}

TEST(CsvReader, FieldsAreTextUnderTheNamesOfTheHeader) {
  EXPECT_THAT(csv_rows("b,a\n1,x y\n,\n"), ElementsAre(R"(2:{"b":"1","a":"x y"})", R"(3:{"b":"","a":""})"));
  EXPECT_THAT(csv_rows("prompt, question , response\np, q,r\n"),
              ElementsAre(R"(2:{"prompt":"p","question":" q","response":"r"})"));
}

TEST(CsvReader, ManyColumnsTakeATimeThatGrowsWithThem) {
  std::string header, fields;
  for (int i = 0; i < 100'000; ++i) {
    header += (i ? ",c" : "c") + std::to_string(i);
    fields += i ? ",1" : "1";
  }
  const double begin = processor_seconds();
  const DataFolder folder;
  CsvReader reader(folder.write("d.csv", header + "\n" + fields + "\n"));
  RawRow row;
  ASSERT_TRUE(reader.next(row));
  EXPECT_EQ(parse_row(row).size(), 100'000u);
  EXPECT_LT(processor_seconds() - begin, 5);
}

TEST(CsvReader, QuotedFieldsHoldDelimitersLineEndsAndQuotes) {
  EXPECT_THAT(csv_rows("a,b\r\n\"x, \"\"y\"\"\r\nz\",\"\"\r\n\"1\",2\r\n"),
              ElementsAre(R"(2:{"a":"x, \"y\"\r\nz","b":""})", R"(4:{"a":"1","b":"2"})"));
  EXPECT_THAT(csv_rows("\"a\",\"b\"\n\"\"\"\",\"\n\"\n"), ElementsAre(R"(2:{"a":"\"","b":"\n"})"));
}

TEST(CsvReader, ByteOrderMarksBlankLinesAndMissingLastLineEndsAreFine) {
  EXPECT_THAT(csv_rows("\xEF\xBB\xBF"
                       "a,b\r\n\r\n1,2\r\n\n3,4"),
              ElementsAre(R"(3:{"a":"1","b":"2"})", R"(5:{"a":"3","b":"4"})"));
  EXPECT_THAT(csv_rows(""), ElementsAre());
  EXPECT_THAT(csv_rows("a,b\n"), ElementsAre());
}

TEST(CsvReader, UnnamedColumnsAreNotRead) {
  EXPECT_THAT(csv_rows(",a,\n0,x,\n1,y,z\n"), ElementsAre(R"(2:{"a":"x"})", R"(3:{"a":"y"})"));
}

TEST(CsvReader, TabsPartTheFieldsOfTsv) {
  EXPECT_THAT(csv_rows("a\tb\n1,5\tsay \"x\"\n\"q\t\"\"\"\tr\n", "d.tsv"),
              ElementsAre(R"(2:{"a":"1,5","b":"say \"x\""})", R"(3:{"a":"q\t\"","b":"r"})"));
}

TEST(CsvReader, RaggedRowsAreNamedWithTheirLine) {
  EXPECT_THAT(csv_error("a,b\n1,2\n\"x\ny\",3\n4\n"),
              AllOf(HasSubstr("the row has 1 fields, the header has 2"), HasSubstr("d.csv:5\n"),
                    HasSubstr("write an empty field for each missing value")));
  EXPECT_THAT(csv_error("a,b\n1,2,3\n"), AllOf(HasSubstr("the row has 3 fields, the header has 2"),
                                               HasSubstr("d.csv:2\n"), HasSubstr("must be in quotes")));
}

TEST(CsvReader, BrokenQuotesAreNamedWithTheirLine) {
  EXPECT_THAT(csv_error("a,b\n1,2\n\"x,3\n4,5\n"),
              AllOf(HasSubstr("a quote is opened here and never closed"), HasSubstr("d.csv:3\n")));
  EXPECT_THAT(csv_error("a,b\n\"x\" ,3\n"),
              AllOf(HasSubstr("there is text after the closing quote"), HasSubstr("d.csv:2\n")));
  EXPECT_THAT(csv_error("a,b\n5\" disk,3\n"),
              AllOf(HasSubstr("a quote inside a field that does not begin with one"), HasSubstr("double each quote")));
  EXPECT_THAT(csv_error("a,b\n1\r2,3\n"), HasSubstr("a carriage return without a line feed"));
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
  EXPECT_THAT(csv_error("a;b\n5\" disk;3\n"), HasSubstr("a quote inside a field"));
}

TEST(CsvReader, ADelimiterIsOneCharacter) {
  EXPECT_EQ(delimiter_of("", "d"), std::nullopt);
  EXPECT_EQ(delimiter_of("tab", "d"), '\t');
  EXPECT_EQ(delimiter_of("\\t", "d"), '\t');
  EXPECT_EQ(delimiter_of(";", "d"), ';');
  for (const char* wrong : {"a", "\"", ";;", "é"}) {
    EXPECT_THAT(refusal([&] { delimiter_of(wrong, "d"); }), HasSubstr("not a field separator")) << wrong;
  }
}

TEST(CsvReader, HeadersThatCannotBeMeantAreRefused) {
  EXPECT_THAT(csv_error("a,b, a\n1,2,3\n"), AllOf(HasSubstr("names the column 'a' twice"), HasSubstr("d.csv:1\n")));
  EXPECT_THAT(csv_error("prompt,response\na,b\n", "d.tsv"),
              AllOf(HasSubstr("the header is one column: 'prompt,response'"), HasSubstr("delimiter: \",\"")));
  EXPECT_THAT(csv_error(",,\n1,2,3\n"), HasSubstr("the header names no column"));
}

TEST(CsvReader, WhatIsNotTextIsRefusedWithItsLine) {
  EXPECT_THAT(csv_error("a\n\"x\n\xFF\"\n"),
              AllOf(HasSubstr("byte 4 of the row is not UTF-8"), HasSubstr("d.csv:3\n")));
  EXPECT_THAT(csv_error("\xC3(,b\n1,2\n"), HasSubstr("the header is not UTF-8"));
  EXPECT_THAT(csv_error(std::string("\xFF\xFE"
                                    "a\0",
                                    4)),
              HasSubstr("the file is UTF-16"));
  EXPECT_THAT(csv_error("a\n\"" + std::string(20'000, 'x') + "\n"), HasSubstr("the row is longer than 10000 bytes"));
}

TEST(CsvReader, AFieldOfTenMegabytesIsRead) {
  const DataFolder folder;
  const std::string field(10 << 20, 'x');
  CsvReader reader(folder.write("d.csv", "a,b\n\"" + field + "\",1\n"));
  RawRow row;
  ASSERT_TRUE(reader.next(row));
  EXPECT_EQ(parse_row(row)["a"].get<std::string>().size(), field.size());
}

/// Writes CSV from the grammar of RFC 4180.
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
    refusal([&] { csv_rows(content, seed % 2 ? "d.csv" : "d.tsv"); });
  }
}

std::string gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  std::string input = text;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

std::string rows(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i) text += Json{{"text", "row " + std::to_string(i)}}.dump() + "\n";
  return text;
}

/// The texts of all rows, one after another.
std::string read(const std::string& path) {
  const DatasetEntry entry{path};
  DatasetReader reader(entry);
  std::string all;
  for (DatasetRow row; reader.next(row);) all += parse_row(row.raw).dump();
  EXPECT_EQ(reader.bytes_read(), reader.bytes_total());
  return all;
}

TEST(CompressedData, AreReadAsWhatTheyUnpackTo) {
  const DataFolder folder;
  const std::string text = rows(0, 100'000), plain = read(folder.write("a.jsonl", text));
  EXPECT_EQ(read(folder.write("a.jsonl.gz", gzip(text))), plain);
  EXPECT_EQ(read(folder.write("a.jsonl.zst", zstd(text))), plain);
}

TEST(CompressedData, MayHaveSeveralParts) {
  const DataFolder folder;
  const std::string plain = read(folder.write("a.jsonl", rows(0, 30)));
  EXPECT_EQ(read(folder.write("a.jsonl.gz", gzip(rows(0, 10)) + gzip(rows(10, 20)))), plain);
  EXPECT_EQ(read(folder.write("a.jsonl.zst", zstd(rows(0, 10)) + zstd(rows(10, 20)))), plain);
}

TEST(CompressedData, ZeroBytesAfterGzipMembersAreSkipped) {
  const DataFolder folder;
  const std::string plain = read(folder.write("a.jsonl", rows(0, 30))), zeros(1 << 18, '\0');
  EXPECT_EQ(read(folder.write("a.jsonl.gz", gzip(rows(0, 30)) + zeros)), plain);
  EXPECT_EQ(read(folder.write("a.jsonl.gz", gzip(rows(0, 10)) + zeros + gzip(rows(10, 20)) + '\0')), plain);
  EXPECT_THAT(refusal([&] { read(folder.write("a.jsonl.gz", gzip(rows(0, 10)) + zeros + "x")); }),
              HasSubstr("gzip data"));
}

TEST(JsonRows, HaveWhatPythonWritesBeyondJson) {
  const DataFolder folder;
  const auto row = [&](const std::string& text) { return read(folder.write("a.jsonl", text + "\n")); };
  EXPECT_EQ(row(R"({"text": "a", "score": NaN, "x": [Infinity, -Infinity]})"),
            R"({"text":"a","score":null,"x":[null,null]})");
  EXPECT_EQ(row(R"({"text": "NaN \\ud83d Infinity", "score": NaN})"),
            R"({"text":"NaN \\ud83d Infinity","score":null})");
  EXPECT_EQ(row(R"({"text": "a\ud83d b\ude00 \ud83d\ude00 \ud83d\ud83d\ude00"})"),
            "{\"text\":\"a\uFFFD b\uFFFD \U0001F600 \uFFFD\U0001F600\"}");
  EXPECT_THAT(refusal([&] { row(R"({"text": NaN, "b": Nan})"); }), HasSubstr("broken JSON"));
}

TEST(CompressedData, KeepTheKindOfTheirName) {
  const DataFolder folder;
  EXPECT_EQ(read(folder.write("a.json.gz", gzip(R"({"data": [{"text": "x"}, {"text": "y"}]})"))),
            R"({"text":"x"}{"text":"y"})");
  EXPECT_EQ(read(folder.write("a.csv.zst", zstd("text;id\nx;1\n"))), R"({"text":"x","id":"1"})");
  EXPECT_EQ(read(folder.write("a.tsv.gz", gzip("text\tid\nx\t1\n"))), R"({"text":"x","id":"1"})");
  EXPECT_EQ(name_from_path("data/chat.jsonl.gz"), "chat");
  EXPECT_EQ(kind_of_file("a.parquet.gz"), FileKind::kOther);
  EXPECT_THAT(refusal([&] { files_of_dataset(folder.write("a.parquet.gz", "x"), ""); }),
              HasSubstr("only .jsonl, .json"));
  folder.write("d/train.jsonl.gz", gzip(rows(0, 1)));
  folder.write("d/test.jsonl.gz", gzip(rows(1, 1)));
  EXPECT_EQ(files_of_dataset(folder / "d", "train").files, std::vector<std::string>{folder / "d/train.jsonl.gz"});
}

TEST(CompressedData, DamagedAndCutOffFilesAreRefused) {
  const DataFolder folder;
  for (const auto& [name, packed] : {std::pair<std::string, std::string>{"a.jsonl.gz", gzip(rows(0, 20'000))},
                                     {"a.jsonl.zst", zstd(rows(0, 20'000))}}) {
    const auto error = [&, file = name](const std::string& bytes) {
      return refusal([&] { read(folder.write(file, bytes)); });
    };
    EXPECT_THAT(error(packed.substr(0, packed.size() - 5)), HasSubstr("end in the middle")) << name;
    EXPECT_THAT(error(packed.substr(0, packed.size() / 2)), HasSubstr("end in the middle")) << name;
    EXPECT_THAT(error(""), HasSubstr("end in the middle")) << name;
    EXPECT_THAT(error(rows(0, 1)), HasSubstr("are damaged")) << name;
    EXPECT_THAT(error(packed + "garbage behind it"), HasSubstr("are damaged")) << name;
  }
}

}  // namespace
}  // namespace hone
