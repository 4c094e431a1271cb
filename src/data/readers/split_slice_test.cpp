#include "data/readers/split_slice.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "data/dataset/data_testing.h"
#include "data/dataset/dataset_reader.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// "begin:end" of a split's rows among `total`.
std::string slice_of(const std::string& split, int64_t total) {
  const RowRange range = parse_split(split).range(total);
  return fmt::format("{}:{}", range.begin, range.end);
}

TEST(SplitSlice, SelectsTheRowsThatDatasetsSelects) {
  EXPECT_EQ(slice_of("train[:100]", 1000), "0:100");
  EXPECT_EQ(slice_of("train[:1_00]", 1000), "0:100");
  EXPECT_EQ(slice_of("train[10:20]", 15), "10:15");
  EXPECT_EQ(slice_of("train[-5:]", 12), "7:12");
  EXPECT_EQ(slice_of("train[:-5]", 12), "0:7");
  EXPECT_EQ(slice_of("train[-50:]", 12), "0:12");
  EXPECT_EQ(slice_of("train[:20%]", 7), "0:1");
  EXPECT_EQ(slice_of("train[20%:]", 7), "1:7") << "two slices share no row and leave none out";
  EXPECT_EQ(slice_of("train[:50%]", 5), "0:2") << "halves are rounded to the even number";
  EXPECT_EQ(slice_of("train[:50%]", 7), "0:4");
  EXPECT_EQ(slice_of("train[-10%:]", 7), "6:7");
  EXPECT_EQ(slice_of("train[:]", 7), "0:7");
  EXPECT_EQ(parse_split("train[:20%]").name, "train");
  EXPECT_FALSE(parse_split("train").sliced);
}

TEST(SplitSlice, OtherFormsAreRefused) {
  const auto refused = [](const std::string& split) { return refusal([&] { parse_split(split); }); };
  for (const char* split : {"train[7]", "train[:20%](pct1_dropremainder)", "[:20]", "train[:a]", "train[:%]",
                            "train[-:]", "train[:20", "train[:9999999999999999]"}) {
    EXPECT_THAT(refused(split), HasSubstr("is not a name with a slice of its rows")) << split;
  }
  EXPECT_THAT(refused("train[:101%]"), HasSubstr("more than 100 %"));
  EXPECT_THAT(refused("train[10:20%]"), HasSubstr("mixes rows and percent"));
}

class SlicedRows : public testing::Test {
 protected:
  SlicedRows() {
    std::string rows;
    for (int i = 0; i < 6; ++i) rows += fmt::format("{{\"text\": \"{}\"}}\n", i);
    folder_.write("d/train-0.jsonl", rows);
    folder_.write("d/train-1.csv", "text\n6\n7\n8\n9\n");
  }
  /// The texts of the rows, joined.
  std::string texts(const std::string& split, std::optional<int64_t> samples = {}) {
    const DatasetEntry entry{.path = folder_ / "d", .samples = samples, .split = split};
    DatasetReader reader(entry);
    std::string all;
    for (DatasetRow row; reader.next(row);) all += parse_row(row.raw).at("text").get<std::string>();
    return all;
  }
  DataFolder folder_;
};

TEST_F(SlicedRows, AreReadAcrossFilesOfAllKinds) {
  EXPECT_EQ(texts("train"), "0123456789");
  EXPECT_EQ(texts("train[:20%]"), "01");
  EXPECT_EQ(texts("train[50%:80%]"), "567");
  EXPECT_EQ(texts("train[4:8]"), "4567");
  EXPECT_EQ(texts("train[7:]"), "789");
  EXPECT_EQ(texts("train[-3:]"), "789");
  EXPECT_EQ(texts("train[5:100]", 2), "56") << "samples counts the rows of the slice";
}

TEST_F(SlicedRows, ASliceWithoutRowsIsRefused) {
  EXPECT_THAT(refusal([&] { texts("train[:1%]"); }), HasSubstr("selects no row of 10"));
  EXPECT_THAT(refusal([&] { texts("train[5:5]"); }), HasSubstr("selects no row"));
}

TEST_F(SlicedRows, NoRowBehindTheSliceIsParsed) {
  folder_.write("broken/train.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{broken\n");
  const DatasetEntry entry{.path = folder_ / "broken", .split = "train[1:2]"};
  DatasetReader reader(entry);
  DatasetRow row;
  EXPECT_TRUE(reader.next(row));
  EXPECT_FALSE(reader.next(row));
}

}  // namespace
}  // namespace hone
