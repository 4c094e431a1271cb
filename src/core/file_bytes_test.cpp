#include "core/file_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "core/error.h"
#include "core/untrusted_json.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class Files : public ::testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "hone_files_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    std::ofstream(folder_ / "text") << "0123456789";
    EXPECT_EQ(mkfifo((folder_ / "pipe").c_str(), 0644), 0);
  }
  ~Files() override { fs::remove_all(folder_); }

  std::string refusal(const fs::path& path, FileSource source = FileSource::kRegular, uint64_t most = 1000) const {
    const Clock::time_point begin = Clock::now();
    std::string what;
    try {
      read_whole_file(path, most, source);
    } catch (const UserError& error) {
      EXPECT_EQ(error.where(), path.string());
      what = error.message();
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(9));
    return what;
  }

  fs::path folder_;
};

TEST_F(Files, OnlyRegularOnesAreReadAndNobodyWaits) {
  EXPECT_EQ(read_whole_file(folder_ / "text"), "0123456789");
  EXPECT_THAT(refusal(folder_ / "pipe"), HasSubstr("a pipe"));
  EXPECT_THAT(refusal(folder_), HasSubstr("a folder"));
  EXPECT_THAT(refusal("/dev/zero"), HasSubstr("a device"));
  EXPECT_THAT(refusal("/dev/zero", FileSource::kAlsoPipe), HasSubstr("a device"));
  EXPECT_THAT(refusal(folder_ / "nothing"), HasSubstr("No such file"));
  EXPECT_THROW(FileBytes(folder_ / "pipe"), UserError);
}

TEST_F(Files, LinksAreFollowed) {
  fs::create_symlink("text", folder_ / "link");
  EXPECT_EQ(read_whole_file(folder_ / "link"), "0123456789");
  fs::create_symlink("/dev/zero", folder_ / "zero");
  EXPECT_THAT(refusal(folder_ / "zero"), HasSubstr("a device"));
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_NE(refusal(folder_ / "loop"), "");
}

TEST_F(Files, LargerOnesThanAllowedAreRefused) {
  EXPECT_EQ(refusal(folder_ / "text", FileSource::kRegular, 10), "");
  EXPECT_THAT(refusal(folder_ / "text", FileSource::kRegular, 9), HasSubstr("more than the 9 bytes"));
  // Its size is said to be 0.
  EXPECT_FALSE(read_whole_file("/proc/self/status").empty());
  EXPECT_THAT(refusal("/proc/self/status", FileSource::kRegular, 9), HasSubstr("more than the 9 bytes"));
}

TEST_F(Files, APipeThatTheUserTypedIsReadToItsEnd) {
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // who reads has opened it before
    std::ofstream pipe(folder_ / "pipe");
    pipe << std::string(100'000, 'x') << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    pipe << "end";
  });
  const std::string text = read_whole_file(folder_ / "pipe", 1'000'000, FileSource::kAlsoPipe);
  writer.join();
  EXPECT_EQ(text.size(), 100'003u);
  EXPECT_TRUE(text.ends_with("xend"));
}

TEST_F(Files, APipeIsReadUpToItsBoundAndNotWaitedForWithoutAWriter) {
  EXPECT_THAT(refusal(folder_ / "pipe", FileSource::kAlsoPipe), HasSubstr("nobody writes to this pipe"));
  std::thread writer([&] { std::ofstream(folder_ / "pipe") << std::string(2000, 'x'); });
  EXPECT_THAT(refusal(folder_ / "pipe", FileSource::kAlsoPipe), HasSubstr("more than the 1000 bytes"));
  writer.join();
}

TEST_F(Files, WhatIsNotThereIsNoError) {
  EXPECT_EQ(read_whole_file_if_there(folder_ / "nothing"), std::nullopt);
  EXPECT_EQ(read_whole_file_if_there(folder_ / "text" / "below"), std::nullopt);
  EXPECT_EQ(read_whole_file_if_there(folder_ / "text"), "0123456789");
  EXPECT_THROW(read_whole_file_if_there(folder_ / "pipe"), UserError);
  EXPECT_EQ(read_json_if_there(folder_ / "nothing"), std::nullopt);
  std::ofstream(folder_ / "json") << "{\"a\": 1}";
  EXPECT_EQ(read_json(folder_ / "json"), (Json{{"a", 1}}));
}

TEST_F(Files, BytesAreReadFromAnywhere) {
  const FileBytes file(folder_ / "text");
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(file.read(3, 4), "3456");
  EXPECT_THROW(file.read(8, 3), UserError);
  EXPECT_THROW(file.read(~uint64_t{0}, 3), UserError);
}

}  // namespace
}  // namespace hone
