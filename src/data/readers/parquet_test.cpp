// Files that tests/fixtures/data/make_parquet.py wrote. tools/check_parquet.py compares random ones with pyarrow.
#include <gmock/gmock.h>

#include <cmath>

#include "core/base/philox.h"
#include "data/dataset/data_testing.h"
#include "data/dataset/dataset_reader.h"
#include "data/readers/parquet_reader.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string parquet(const std::string& name) { return fixture("data/" + name + ".parquet"); }

std::vector<std::string> parquet_rows(const std::string& path) {
  const auto reader = open_parquet(path);
  std::vector<std::string> rows;
  for (RawRow row; reader->next(row);) rows.push_back(parse_row(row).dump());
  return rows;
}

TEST(Parquet, NestedColumnsBecomeJsonWithoutTheNullsOfOtherRows) {
  EXPECT_THAT(parquet_rows(parquet("chat")),
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
  EXPECT_THAT(parquet_rows(parquet("tokens")),
              ElementsAre(R"({"input_ids":[5,17,9],"labels":[-100,17,9]})", R"({"input_ids":[2,3],"labels":[2,3]})"));
  EXPECT_THAT(parquet_rows(parquet("no_rows")), ElementsAre());
}

TEST(Parquet, RowsOfManyGroupsComeInOrder) {
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

TEST(Parquet, ErrorsNameTheRow) {
  EXPECT_THAT(refusal([] { parquet_rows(parquet("not_utf8")); }),
              AllOf(HasSubstr("the row cannot be read: in the column 'text': byte 1 of a text is not UTF-8"),
                    HasSubstr("not_utf8.parquet, row 2")));
  DatasetEntry entry = {parquet("tokens"), SampleFormat::kMessages};
  EXPECT_THAT(refusal([&] {
                DatasetReader reader(entry);
                for (DatasetRow row; reader.next(row);) read_row(row, entry.mapping);
              }),
              AllOf(HasSubstr("the column 'messages' is missing"), HasSubstr("tokens.parquet, row 1")));
}

TEST(Parquet, WhatIsNoParquetIsRefused) {
  const DataFolder folder;
  const std::string whole = read_fixture("data/chat.parquet");
  EXPECT_THAT(refusal([&] { parquet_rows(folder.write("a.parquet", "{}")); }),
              AllOf(HasSubstr("the file cannot be read as Parquet"), HasSubstr("a.parquet")));
  EXPECT_THAT(refusal([&] { parquet_rows(folder.write("b.parquet", "")); }), HasSubstr("cannot be read as Parquet"));
  EXPECT_THAT(refusal([&] { parquet_rows(folder / "none.parquet"); }),
              AllOf(HasSubstr("the file cannot be read"), HasSubstr("none.parquet")));
  for (size_t size = 1; size < whole.size(); size += 97) {
    EXPECT_NE(refusal([&] { parquet_rows(folder.write("c.parquet", whole.substr(0, size))); }), "") << size;
  }
}

TEST(Parquet, DamagedFilesAreRefusedOrReadButNeverCrash) {
  const DataFolder folder;
  const std::string whole = read_fixture("data/chat.parquet");
  ASSERT_EQ(refusal([&] { parquet_rows(folder.write("d.parquet", whole)); }), "");
  for (size_t at = 0; at < whole.size(); at += 13) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    refusal([&] { parquet_rows(folder.write("d.parquet", damaged)); });
  }
}

TEST(Parquet, EveryTypeBecomesItsJson) {
  EXPECT_THAT(
      parquet_rows(parquet("types")),
      ElementsAre(
          R"({"bool":true,"int8":-128,"uint8":255,"uint32":4294967295,"int64":-9223372036854775808,)"
          R"("uint64":18446744073709551615,"half":"0.0999755859375","float":0.10000000149011612,"double":1e+20,)"
          R"("text":"\"\\\n\u0000\u001f)"
          "\x7f\u2028é😀"
          R"(","large":"x","bytes":null,"fixed":null,"null":null,"date":"-0001-12-31","time_ms":"00:00:00.000",)"
          R"("time_us":"00:00:00.000000","time_ns":"00:00:00.000000001","at_ms":"2024-05-01 12:34:56.789",)"
          R"("at_us_utc":"2024-05-01 12:34:56.789000Z","at_ns_paris":"2024-05-01 12:34:56.789000000Z","for":"5",)"
          R"("small_decimal":"-1.50","decimal":"1.2E-9",)"
          R"("large_decimal":"9999999999999999999999999999999999999999999999.000000000000000000000000000000",)"
          R"("dictionary":"x","struct":{"a":null},"pairs":{"1":"b","2":null},"by_struct":{"{\"a\":1.5}":1},)"
          R"("waits":{"1":"7"},"images":[null,null],"fixed_list":[1,2]})",
          R"({"bool":null,"int8":127,"uint8":0,"uint32":0,"int64":9223372036854775807,"uint64":0,)"
          R"("half":"5.960464477539063e-8","float":null,"double":-0.0,"text":"","large":null,"bytes":null,"fixed":null,)"
          R"("null":null,"date":"10000-01-01","time_ms":"12:34:56.789","time_us":"23:59:59.999999",)"
          R"("time_ns":"23:59:59.999999999","at_ms":null,"at_us_utc":null,"at_ns_paris":null,"for":"-1",)"
          R"("small_decimal":"0.01","decimal":"-123456789.0123456789","large_decimal":"0E-30","dictionary":"y",)"
          R"("struct":{"b":"z"},"pairs":null,"by_struct":{},"waits":{},"images":[],"fixed_list":[3,null]})"));
}

/// Row i of the files of all encodings.
Json row_of_encodings(int64_t i) {
  const auto some = [&](Json value) { return i % 7 == 3 ? Json(nullptr) : value; };
  const int64_t sign = i % 2 == 0 ? 1 : -1;
  std::string lengths;
  for (int64_t k = 0; k < i % 5; ++k) lengths += "ab";
  Json row;
  row["delta"] = some(i * i * 1000003 * sign);
  row["delta32"] = 2147483647 * sign;
  row["split"] = some(static_cast<double>(i) / 8);
  row["split32"] = i;
  row["split_fixed"] = std::to_string(i);
  row["lengths"] = some(lengths);
  row["prefixes"] = some("the same beginning " + std::to_string(i / 3));
  row["plain"] = some("text " + std::to_string(i));
  row["flags"] = some(i % 3 == 0);
  row["plain_flags"] = row["flags"];
  row["dictionary"] = some("kind " + std::to_string(i % 11));
  row["overflowing"] = "word " + std::to_string(i);
  Json list = Json::array(), all = Json::array();
  for (int64_t k = 0; k < i % 4; ++k) list.push_back(k);
  row["lists"] = i % 5 == 4 ? Json(nullptr) : list;
  const Json parts[] = {Json::array(), nullptr, Json::array({Json{{"a", i}}, Json::object(), nullptr})};
  for (int64_t k = 0; k < i % 4; ++k) all.push_back(parts[k]);
  row["lists_of_lists"] = all;
  return row;
}

TEST(Parquet, EveryEncodingCodecAndPageIsRead) {
  for (const char* name : {"encodings_v1", "encodings_v2"}) {
    const std::vector<std::string> rows = parquet_rows(parquet(name));
    ASSERT_EQ(rows.size(), 500u);
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(Json::parse(rows[i]), row_of_encodings(static_cast<int64_t>(i))) << name << ", row " << i + 1;
    }
  }
}

TEST(Parquet, WhatOldWritersWroteIsRead) {
  EXPECT_THAT(parquet_rows(parquet("old_forms")),
              ElementsAre(R"({"tags":["a","b"],"messages":[{"content":"one"}],"numbers":[1,-2,3],)"
                          R"("time":"1970-01-01 00:00:01.000000001","kind":"y2"})",
                          R"({"tags":[],"messages":[{"content":"two"},{},{"content":"four"}],"numbers":[],)"
                          R"("time":null,"kind":"x1"})",
                          R"({"tags":null,"messages":[],"numbers":[4],"time":"9999-12-31 23:59:59.999999999",)"
                          R"("kind":"y2"})"));
}

TEST(Parquet, WhatIsNotReadIsRefusedByName) {
  const auto refused = [](const std::string& name) { return refusal([&] { parquet_rows(parquet(name)); }); };
  EXPECT_THAT(refused("encrypted_column"),
              AllOf(HasSubstr("cannot be read as Parquet: in the column 'text': it is encrypted"),
                    HasSubstr("write it without encryption")));
  EXPECT_THAT(refused("lzo"), AllOf(HasSubstr("in the column 'text': it is compressed with LZO"),
                                    HasSubstr("write it with Snappy or Zstandard")));
  const DataFolder folder;
  std::string whole = read_fixture("data/chat.parquet");
  whole.back() = 'E';
  EXPECT_THAT(refusal([&] { parquet_rows(folder.write("e.parquet", whole)); }),
              AllOf(HasSubstr("cannot be read as Parquet: it is encrypted"), HasSubstr("e.parquet")));
}

TEST(Parquet, NoRowIsLostOrMadeUp) {
  const auto refused = [](const std::string& name) { return refusal([&] { parquet_rows(parquet(name)); }); };
  EXPECT_THAT(refused("too_few"), AllOf(HasSubstr("it ends before the rows do"), HasSubstr("too_few.parquet, row 2")));
  EXPECT_THAT(refused("too_many"), HasSubstr("it goes on after the last row"));
  EXPECT_THAT(refused("huge_page"), HasSubstr("a page has 2147483647 bytes"));
  // Pages with checksums: no byte of a page may change.
  const DataFolder folder;
  const std::string whole = read_fixture("data/encodings_v1.parquet");
  int found = 0;
  for (size_t at = 100; at < whole.size() / 2; at += 997) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    found += refusal([&] { parquet_rows(folder.write("d.parquet", damaged)); }).empty() ? 0 : 1;
  }
  EXPECT_GE(found, 8);
}

TEST(Parquet, RandomChangesAreRefusedOrReadButNeverCrash) {
  const DataFolder folder;
  for (const char* name : {"old_forms", "tokens", "not_utf8", "types"}) {
    const std::string whole = read_fixture(std::string("data/") + name + ".parquet");
    for (uint64_t seed = 0; seed < 300; ++seed) {
      PhiloxSequence random(seed);
      std::string damaged = whole;
      for (uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
        damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
      }
      refusal([&] { parquet_rows(folder.write("d.parquet", damaged)); });
    }
  }
}

}  // namespace
}  // namespace hone
