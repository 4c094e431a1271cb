#include "data/unpacked_file.h"

#include <gmock/gmock.h>
#include <zlib.h>
#include <zstd.h>

#include "data/csv_reader.h"
#include "data/data_testing.h"
#include "data/dataset_files.h"
#include "data/dataset_reader.h"

namespace hone {
namespace {

using testing::HasSubstr;

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

TEST(CompressedData, KeepTheKindOfTheirName) {
  const DataFolder folder;
  EXPECT_EQ(read(folder.write("a.json.gz", gzip(R"({"data": [{"text": "x"}, {"text": "y"}]})"))),
            R"({"text":"x"}{"text":"y"})");
  EXPECT_EQ(read(folder.write("a.csv.zst", zstd("text;id\nx;1\n"))), R"({"text":"x","id":"1"})");
  EXPECT_EQ(read(folder.write("a.tsv.gz", gzip("text\tid\nx\t1\n"))), R"({"text":"x","id":"1"})");
  EXPECT_EQ(name_from_path("data/chat.jsonl.gz"), "chat");
  EXPECT_EQ(kind_of_file("a.parquet.gz"), FileKind::kOther);
  EXPECT_THAT(refusal([&] { files_of_dataset(folder.write("a.parquet.gz", "x"), ""); }),
              HasSubstr("of compressed files .jsonl, .json"));
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
