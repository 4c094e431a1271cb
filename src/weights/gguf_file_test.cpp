#include "weights/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "core/base/error.h"
#include "weights/gguf_tensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class GgufFiles : public testing::Test {
 protected:
  GgufFiles()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("hone_gguf_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~GgufFiles() override { fs::remove_all(folder_); }

  /// A file with keys of every type and two tensors.
  fs::path written() const {
    GgufMetadata metadata;
    metadata.set("general.architecture", std::string("llama"));
    metadata.set("llama.block_count", int64_t{2});
    metadata.set("llama.eps", 1e-6);
    metadata.set("flag", true);
    metadata.set("words", std::vector<std::string>{"a", "", "long word"});
    metadata.set("numbers", std::vector<double>{0.5, -2});
    metadata.set("ids", std::vector<int64_t>{-1, 7});
    metadata.set("flags", std::vector<bool>{true, false, true});
    GgufWriter writer(path(), metadata, {{"a", GgufType::kF32, {3}}, {"b", GgufType::kQ8_0, {2, 3, 32}}});
    writer.write_floats(std::vector<float>{1, 2, 3});
    std::vector<float> values;
    for (int i = 0; i < 192; ++i) values.push_back(static_cast<float>(i % 64 - 32) / 32);
    writer.write_floats({values.data(), 64});
    writer.write_floats({values.data() + 64, 128});
    fs::rename(writer.complete(), path());
    return path();
  }
  fs::path path() const { return folder_ / "model.gguf"; }
  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// The message for a file of these bytes.
  std::string refusal(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
    try {
      GgufFile file(path());
    } catch (const UserError& error) {
      return error.message();
    }
    return "";
  }

  fs::path folder_;
};

TEST_F(GgufFiles, KeysAndTensorsComeBack) {
  const GgufFile file(written());
  const GgufMetadata& keys = file.metadata();
  EXPECT_EQ(keys.text("general.architecture"), "llama");
  EXPECT_EQ(keys.integer("llama.block_count"), 2);
  EXPECT_FLOAT_EQ(static_cast<float>(*keys.number("llama.eps")), 1e-6f);
  EXPECT_EQ(keys.boolean("flag"), true);
  EXPECT_THAT(*keys.list<std::string>("words"), testing::ElementsAre("a", "", "long word"));
  EXPECT_THAT(*keys.list<double>("numbers"), testing::ElementsAre(0.5, -2));
  EXPECT_THAT(*keys.list<int64_t>("ids"), testing::ElementsAre(-1, 7));
  EXPECT_THAT(*keys.list<bool>("flags"), testing::ElementsAre(true, false, true));
  EXPECT_EQ(keys.integer("absent"), std::nullopt);
  EXPECT_EQ(keys.list<int64_t>("absent"), nullptr);
  EXPECT_THROW(keys.integer("flag"), UserError);
  EXPECT_THROW(keys.list<double>("ids"), UserError);
  ASSERT_EQ(file.entries().size(), 2u);
  const GgufEntry& b = *file.find("b");
  EXPECT_THAT(b.shape, testing::ElementsAre(2, 3, 32));
  EXPECT_EQ(b.begin % 32, 0u);
  EXPECT_EQ(file.find("c"), nullptr);
  std::vector<float> all(192), part(50);
  file.read_floats(b, 0, 192, all.data());
  for (int i = 0; i < 192; ++i) EXPECT_NEAR(all[static_cast<size_t>(i)], (i % 64 - 32) / 32.0, 0.5 / 127 + 1e-3);
  file.read_floats(b, 45, 50, part.data());  // from inside a block to inside another
  EXPECT_EQ(part, std::vector<float>(all.begin() + 45, all.begin() + 95));
}

TEST_F(GgufFiles, ADamagedFileIsRefused) {
  written();
  const std::string good = bytes();
  ASSERT_EQ(refusal(good), "");
  // Every truncation, but of the last padding, and no crash for changed bytes of the header.
  for (size_t length = 0; length < good.size() - 32; length += 7) {
    EXPECT_NE(refusal(good.substr(0, length)), "") << length;
  }
  constexpr size_t kHeader = 400;
  for (size_t at = 0; at < kHeader; at += 3) {
    for (const char change : {'\x01', '\x80', '\xFF'}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      refusal(bad);
    }
  }
}

/// The bytes of a header, put together by hand.
struct Header {
  std::string bytes = "GGUF";

  template <class T>
  Header& number(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Header& text(const std::string& text) {
    number(static_cast<uint64_t>(text.size()));
    bytes += text;
    return *this;
  }
  static Header with(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    Header header;
    return header.number(version).number(tensors).number(keys);
  }
  Header& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    text(name).number(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) number(dim);
    return number(type).number(offset);
  }
  std::string padded(size_t more) const { return bytes + std::string((32 - bytes.size() % 32) % 32 + more, '\0'); }
};

TEST_F(GgufFiles, ImpossibleHeadersAreRefused) {
  const auto huge = uint64_t{1} << 62;
  EXPECT_THAT(refusal("GGML"), HasSubstr("does not begin with GGUF"));
  EXPECT_THAT(refusal(Header::with(0, 0, 1).bytes), HasSubstr("version 1 is not read"));
  EXPECT_THAT(refusal(Header::with(0, 0, 0x03000000).bytes), HasSubstr("big-endian"));
  EXPECT_THAT(refusal(Header::with(huge, 0).bytes), HasSubstr("tensors"));
  EXPECT_THAT(refusal(Header::with(0, huge).bytes), HasSubstr("keys"));
  EXPECT_THAT(refusal(Header::with(0, 1).number(huge).bytes), HasSubstr("a text of"));
  EXPECT_THAT(refusal(Header::with(0, 1).text("k").number(uint32_t{13}).bytes), HasSubstr("unknown type 13"));
  const auto list = [&](uint32_t of, uint64_t count) {
    return refusal(Header::with(0, 1).text("k").number(uint32_t{9}).number(of).number(count).padded(64));
  };
  EXPECT_THAT(list(4, huge), HasSubstr("claims"));
  EXPECT_THAT(list(8, 64), HasSubstr("claims"));
  EXPECT_THAT(list(9, 1), HasSubstr("list of lists"));
  EXPECT_THAT(refusal(Header::with(0, 2)
                          .text("k")
                          .number(uint32_t{7})
                          .number(uint8_t{1})
                          .text("k")
                          .number(uint32_t{7})
                          .number(uint8_t{1})
                          .padded(0)),
              HasSubstr("appears twice"));
  const auto one = [&](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return refusal(Header::with(1, 0).tensor("t", dims, type, offset).padded(256));
  };
  EXPECT_EQ(one({64}, 0, 0), "");
  EXPECT_THAT(one({}, 0, 0), HasSubstr("dimensions"));
  EXPECT_THAT(one({1, 1, 1, 1, 1}, 0, 0), HasSubstr("dimensions"));
  EXPECT_THAT(one({0}, 0, 0), HasSubstr("impossible"));
  EXPECT_THAT(one({huge}, 0, 0), HasSubstr("impossible"));
  EXPECT_THAT(one({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0), HasSubstr("impossible"));
  EXPECT_THAT(one({65}, 0, 0), HasSubstr("truncated"));
  EXPECT_THAT(one({8}, 0, 16), HasSubstr("odd byte"));
  EXPECT_THAT(one({8}, 0, huge), HasSubstr("truncated"));
  EXPECT_THAT(one({33}, 8, 0), HasSubstr("blocks of 32"));
  EXPECT_THAT(one({256}, 10, 0), HasSubstr("Q2_K, which is not read"));
  const auto two = [&](const std::string& second, uint64_t offset) {
    return refusal(Header::with(2, 0).tensor("t", {16}, 0, 0).tensor(second, {8}, 0, offset).padded(256));
  };
  EXPECT_EQ(two("u", 64), "");
  EXPECT_THAT(two("u", 32), HasSubstr("overlap"));
  EXPECT_THAT(two("t", 64), HasSubstr("appears twice"));
}

TEST_F(GgufFiles, NothingIsLeftOfAFileThatIsNotComplete) {
  {
    GgufWriter writer(path(), {}, {{"a", GgufType::kF16, {2}}});
    EXPECT_THROW(writer.write_floats(std::vector<float>{1, 1e9f}), UserError);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST(RowGrids, AreInvertible) {
  const RowGrid grids[] = {RowGrid::all(12), RowGrid::part_of_each(3, 8, 4, 4), RowGrid::part_of_each(3, 8, 0, 4),
                           RowGrid::halves_in_turn(3, 8)};
  for (const RowGrid& grid : grids) {
    for (int64_t row = 0; row < grid.rows(); ++row) EXPECT_EQ(grid.grid_row(grid.parameter_row(row)), row);
  }
  EXPECT_EQ(RowGrid::part_of_each(3, 8, 4, 4).grid_row(3), std::nullopt);
  EXPECT_EQ(RowGrid::part_of_each(3, 8, 0, 4).grid_row(12), std::nullopt);
  EXPECT_EQ(RowGrid::all(12).grid_row(12), std::nullopt);
  // Rows 0, d / 2, 1, d / 2 + 1, … of each head.
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < 12; ++row) rows.push_back(RowGrid::halves_in_turn(2, 6).parameter_row(row));
  EXPECT_THAT(rows, testing::ElementsAre(0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11));
}

}  // namespace
}  // namespace hone
