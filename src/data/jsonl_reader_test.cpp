#include "data/jsonl_reader.h"

#include <gmock/gmock.h>

#include "core/philox.h"
#include "data/data_testing.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// "line:text" of each row.
std::vector<std::string> rows_of(const std::string& path, const JsonlReader::Options& options = {}) {
  JsonlReader reader(path, options);
  std::vector<std::string> rows;
  for (RawRow row; reader.next(row);) rows.push_back(std::to_string(row.line) + ":" + row.text);
  return rows;
}

/// The error of reading and parsing all rows of a file with this content.
std::string error_of(const std::string& content, const std::string& name = "d.jsonl") {
  const DataFolder folder;
  const std::string path = folder.write(name, content);
  return refusal([&] {
    JsonlReader reader(path, {.max_row_bytes = 1000});
    for (RawRow row; reader.next(row);) parse_row(row);
  });
}

TEST(JsonlReader, SkipsBlankLinesAndKeepsLineNumbers) {
  const DataFolder folder;
  EXPECT_THAT(rows_of(folder.write("d.jsonl", "{\"a\":1}\n\n  \r\n{\"a\":2}\r\n{\"a\":3}")),
              ElementsAre("1:{\"a\":1}", "4:{\"a\":2}", "5:{\"a\":3}"));
  EXPECT_THAT(rows_of(folder.write("empty.jsonl", "")), ElementsAre());
  EXPECT_THAT(rows_of(folder.write("blank.jsonl", "\n \n")), ElementsAre());
}

TEST(JsonlReader, ToleratesAByteOrderMark) {
  const DataFolder folder;
  EXPECT_THAT(rows_of(folder.write("d.jsonl", "\xEF\xBB\xBF{}\n")), ElementsAre("1:{}"));
  EXPECT_THAT(error_of(std::string("\xFF\xFE{\0}\0", 6)), HasSubstr("the file is UTF-16"));
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
  EXPECT_EQ(rows_of(folder.write("d.jsonl", content)), expected);
}

TEST(JsonlReader, ReadsAnArrayElementByElement) {
  const DataFolder folder;
  const std::string path = folder.write("d.json", " [\n  {\"a\": \"x],{\\\"\"},\n  {\n    \"b\": [1, {}]}\n]\n");
  EXPECT_THAT(rows_of(path), ElementsAre("2:{\"a\": \"x],{\\\"\"}", "3:{\n    \"b\": [1, {}]}\n"));
  EXPECT_THAT(rows_of(folder.write("e.json", "[]")), ElementsAre());
  EXPECT_THAT(rows_of(folder.write("l.json", "{\"a\":1}\n{\"a\":2}\n")), ElementsAre("1:{\"a\":1}", "2:{\"a\":2}"));
}

TEST(JsonlReader, ReadsTheOneListOfObjectsInAnObject) {
  const DataFolder folder;
  const std::string path = folder.write(
      "d.json", "{\"version\": \"1,]\", \"n\": [1, 2],\n \"data\": [\n{\"a\": 1},\n{\"a\": [{}]}],\n\"x\": 3}\n");
  EXPECT_THAT(rows_of(path), ElementsAre("3:{\"a\": 1}", "4:{\"a\": [{}]}"));
  EXPECT_THAT(rows_of(path, {.table = "train"}), testing::SizeIs(2));
  EXPECT_THAT(refusal([&] { rows_of(path, {.table = "test"}); }), HasSubstr("the file has no list 'test'"));
}

TEST(JsonlReader, AsksWhichOfSeveralLists) {
  const DataFolder folder;
  const std::string path = folder.write("d.json", R"({"train": [{"a": 1}], "test": [{"a": 2}, {"a": 3}]})");
  EXPECT_THAT(refusal([&] { rows_of(path); }),
              AllOf(HasSubstr("several lists that could be its rows"), HasSubstr("split: one of train, test")));
  EXPECT_THAT(rows_of(path, {.table = "test"}), ElementsAre("1:{\"a\": 2}", "1:{\"a\": 3}"));
  EXPECT_THAT(rows_of(path, {.table = "train"}), ElementsAre("1:{\"a\": 1}"));
}

TEST(JsonlReader, AnObjectWithTheColumnsOfARowIsOneRow) {
  const DataFolder folder;
  const std::string chat = "{\n\"messages\": [{\"role\": \"user\"}]\n}\n";
  EXPECT_THAT(rows_of(folder.write("d.json", chat)), ElementsAre("1:" + chat));
  EXPECT_THAT(rows_of(folder.write("p.json", R"({"dialog": [{"a": 1}]})"), {.columns = {"dialog"}}),
              ElementsAre(R"(1:{"dialog": [{"a": 1}]})"));
  EXPECT_THAT(rows_of(folder.write("s.json", R"({"text": "a"})")), ElementsAre(R"(1:{"text": "a"})"));
  EXPECT_THAT(refusal([&] { rows_of(folder / "s.json", {.table = "test"}); }),
              HasSubstr("the file has no part 'test'"));
}

TEST(JsonlReader, SaysWhatCannotBeRead) {
  const DataFolder folder;
  EXPECT_THAT(refusal([&] { JsonlReader reader(folder / "none.jsonl"); }),
              AllOf(HasSubstr("cannot be read"), HasSubstr("none.jsonl")));
}

TEST(JsonlReader, NamesFileAndLineOfBrokenRows) {
  EXPECT_THAT(error_of("{\"a\":1}\n\n{\"a\": tru}\n"),
              AllOf(HasSubstr("broken JSON at column 10: "), HasSubstr("d.jsonl:3\n"), HasSubstr("one JSON object")));
  EXPECT_THAT(error_of("{\"a\":1}\n{\"a\": [1, 2\n"), HasSubstr("d.jsonl:2\n"));
  EXPECT_THAT(error_of("{\"a\":1}\n[1]\n"), AllOf(HasSubstr("a JSON array, not an object"), HasSubstr("d.jsonl:2\n")));
  EXPECT_THAT(error_of("{\"a\":\"\xC3(\"}"), AllOf(HasSubstr("byte 7 of the row is not UTF-8"), HasSubstr(":1\n")));
  EXPECT_THAT(error_of("{\"a\":1} {\"b\":2}"), HasSubstr("broken JSON"));
  EXPECT_THAT(error_of("{\"a\":1}\n{\"a\":\"" + std::string(2000, 'x') + "\"}"),
              AllOf(HasSubstr("the row is longer than 1000 bytes"), HasSubstr("d.jsonl:2\n")));
  EXPECT_THAT(error_of("{\"a\":" + std::string(300, '[') + std::string(300, ']') + "}"),
              HasSubstr("nested deeper than 256 levels"));
  EXPECT_THAT(error_of("{\"a\":1e999}"), HasSubstr("broken JSON"));
}

TEST(JsonlReader, NamesTheLineInsideAnElementOfAnArray) {
  EXPECT_THAT(error_of("[\n{\n\"a\": 1,\n\"b\" 2}\n]", "d.json"), HasSubstr("d.json:4\n"));
  EXPECT_THAT(error_of("[{\"a\":1},\n", "d.json"), HasSubstr("the file ends before its array is closed"));
  EXPECT_THAT(error_of("[{\"a\":1}]\n{}", "d.json"),
              AllOf(HasSubstr("text after the end of the array"), HasSubstr("d.json:2\n")));
  EXPECT_THAT(error_of("[{\"a\":1},]", "d.json"), HasSubstr("broken JSON"));
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
      // Nothing else may be thrown.
    }
  }
}

}  // namespace
}  // namespace hone
