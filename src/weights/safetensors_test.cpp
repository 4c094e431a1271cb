#include "weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "params/store_testing.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("hone_safetensors_" + std::to_string(getpid()));
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void write_bytes(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  static std::string file_of(const std::string& header, size_t data_bytes) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\x01');
  }
  /// The error that reading a file with this header gives.
  std::string error_of(const std::string& header, size_t data_bytes) const {
    write_bytes(file_of(header, data_bytes));
    return testing::user_error([&] { SafetensorsFile file(path_); });
  }

  std::filesystem::path path_;
};

TEST_F(Safetensors, ReadsWhatItWrote) {
  {
    SafetensorsWriter writer(path_, {{"a", DType::kF32, {2, 2}}, {"b", DType::kBF16, {3}}, {"s", DType::kF16, {}}});
    const float values[] = {1, -2, 3.5f, 0.25f};
    writer.write_floats(DType::kF32, values, 4);
    writer.write_floats(DType::kBF16, values, 3);
    writer.write_floats(DType::kF16, values + 2, 1);
    writer.finish();
  }
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.read_floats("a"), (std::vector<float>{1, -2, 3.5f, 0.25f}));
  EXPECT_EQ(file.read_floats("b"), (std::vector<float>{1, -2, 3.5f}));
  EXPECT_EQ(file.read_floats("s"), std::vector<float>{3.5f});
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.at("a").begin % 8, 0u);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THROW(file.at("c"), UserError);
  EXPECT_THROW(file.read_integers("a"), UserError);
}

TEST_F(Safetensors, AnUnfinishedFileLeavesNothingBehind) {
  { SafetensorsWriter writer(path_, {{"a", DType::kF32, {4}}}); }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".tmp"));
}

TEST_F(Safetensors, HostileHeadersAreRefusedByName) {
  const auto one = [](const std::string& fields) { return "{\"w\":{" + fields + "}}"; };
  EXPECT_THAT(error_of("not json", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of("{\"w\":3}", 0), HasSubstr("'w' lacks"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 4), HasSubstr("truncated"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 9), HasSubstr("belong to none"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"), 12), HasSubstr("4 bytes before 'w'"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8), HasSubstr("needs 12"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8), HasSubstr("'w'"));
  EXPECT_THAT(error_of(one(R"("dtype":"Q4","shape":[2],"data_offsets":[0,8])"), 8), HasSubstr("Q4"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8), HasSubstr("shape of 'w'"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,8])"), 8), HasSubstr("shape of 'w'"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[281474976710656,281474976710656],"data_offsets":[0,8])"), 8),
              HasSubstr("too large"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8), HasSubstr("data_offsets"));
  EXPECT_THAT(error_of(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                           "v":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                       6),
              HasSubstr("overlap"));
  EXPECT_THAT(error_of(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                           "w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                       4),
              HasSubstr("'w' appears twice"));
}

TEST_F(Safetensors, DeeplyNestedValuesDoNotExhaustTheStack) {
  const std::string nested = std::string(400'000, '[') + std::string(400'000, ']');
  EXPECT_NE(error_of("{\"w\":{\"dtype\":" + nested + R"(,"shape":[2],"data_offsets":[0,8]}})", 8), "");
  EXPECT_NE(error_of("{\"__metadata__\":{\"x\":" + nested + "}}", 0), "");
}

TEST_F(Safetensors, LengthsThatTheFileDoesNotHaveAreRefused) {
  write_bytes("abc");
  EXPECT_THROW(SafetensorsFile file(path_), UserError);
  write_bytes(std::string(8, '\xff'));
  EXPECT_THAT(testing::user_error([&] { SafetensorsFile file(path_); }), HasSubstr("header claims"));
  write_bytes(file_of("{}", 0).substr(0, 9));
  EXPECT_THROW(SafetensorsFile file(path_), UserError);
  EXPECT_THROW(SafetensorsFile file(path_.parent_path()), UserError);
  EXPECT_THROW(SafetensorsFile file(path_.string() + ".none"), UserError);
}

TEST_F(Safetensors, RandomDamageIsAnErrorOrReadsWithinBounds) {
  const std::string good = file_of(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
      32);
  PhiloxSequence random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      const size_t at = random.below(bytes.size());
      if (random.below(4) == 0) {
        bytes.erase(at, 1);
      } else {
        bytes[at] = static_cast<char>(random.below(256));
      }
    }
    write_bytes(bytes);
    try {
      const SafetensorsFile file(path_);
      for (const SafetensorsEntry& entry : file.entries()) {
        EXPECT_LE(entry.begin + entry.bytes, bytes.size());
        std::vector<char> destination(entry.bytes);
        file.read(entry, 0, destination.data(), entry.bytes);
      }
    } catch (const UserError&) {
    }
  }
}

TEST_F(Safetensors, ManyTensorsTakeATimeThatGrowsWithThem) {
  std::string header = "{";
  for (int i = 0; i < 200'000; ++i) {
    header += (i ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  write_bytes(file_of(header + "}", 0));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(SafetensorsFile(path_).entries().size(), 200'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(Safetensors, ShapesHaveAFewDimensions) {
  std::string ones = "1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  EXPECT_THAT(error_of(R"({"a":{"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]}})", 1),
              HasSubstr("'a' has 65 dimensions"));
}

TEST_F(Safetensors, OnlyRegularFilesAreOpened) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0644), 0);
  EXPECT_THAT(testing::user_error([&] { SafetensorsFile file(path_); }), HasSubstr("a pipe, not a regular file"));
}

}  // namespace
}  // namespace hone
