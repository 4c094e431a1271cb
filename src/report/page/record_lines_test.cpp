#include "report/page/record_lines.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <vector>

#include "core/base/error.h"
#include "report/folder_testing.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Followed : public testing::Test {
 protected:
  /// The lines that are new, and "anew" where it begins.
  std::vector<std::string> read_on() {
    std::vector<std::string> read;
    lines_.read_on([&] { read.emplace_back("anew"); }, [&](std::string_view line) { read.emplace_back(line); });
    return read;
  }
  void write(const std::string& text) const { write_text(path_, text); }
  void append(const std::string& text) const { std::ofstream(path_, std::ios::binary | std::ios::app) << text; }
  /// As a run does that goes on from a checkpoint.
  void replace(const std::string& text) const {
    write_text(path_ + ".new", text);
    std::filesystem::rename(path_ + ".new", path_);
  }

  TestFolder folder_;
  const std::string path_ = folder_ / "metrics.jsonl";
  FollowedLines lines_{path_, 8};
};

TEST_F(Followed, EachIsReadOnceItHasItsEnd) {
  EXPECT_THAT(read_on(), ElementsAre("anew"));
  EXPECT_FALSE(lines_.there());
  write("a\nb\nha");
  EXPECT_THAT(read_on(), ElementsAre("anew", "a", "b"));
  EXPECT_TRUE(lines_.there());
  EXPECT_EQ(lines_.unfinished(), "ha");
  EXPECT_THAT(read_on(), IsEmpty());
  append("lf");
  EXPECT_THAT(read_on(), IsEmpty());
  append("\n\nc\n");
  EXPECT_THAT(read_on(), ElementsAre("half", "", "c"));
  EXPECT_EQ(lines_.unfinished(), "");
}

TEST_F(Followed, AFileThatIsNotTheSameIsReadFromItsBeginning) {
  write("a\nb\nc\n");
  read_on();
  write("a\nb\n");
  EXPECT_THAT(read_on(), ElementsAre("anew", "a", "b")) << "shorter";
  replace("a\nb\nd\n");
  EXPECT_THAT(read_on(), ElementsAre("anew", "a", "b", "d")) << "another one, that is longer";
  write("a\nx\nd\ne\n");
  EXPECT_THAT(read_on(), ElementsAre("anew", "a", "x", "d", "e")) << "it was cut, and has grown since";
  append("f\n");
  EXPECT_THAT(read_on(), ElementsAre("f"));
  std::filesystem::remove(path_);
  EXPECT_THAT(read_on(), ElementsAre("anew"));
  EXPECT_FALSE(lines_.there());
}

TEST_F(Followed, ALineThatIsTooLongIsCountedAndNotKept) {
  write("12345678\n123456789\n12345");
  EXPECT_THAT(read_on(), ElementsAre("anew", "12345678"));
  EXPECT_EQ(lines_.too_long(), 1);
  append("6789");
  EXPECT_THAT(read_on(), IsEmpty());
  EXPECT_EQ(lines_.too_long(), 2) << "one without an end, too";
  EXPECT_EQ(lines_.unfinished(), "");
  append("0\na\n");
  EXPECT_THAT(read_on(), ElementsAre("a"));
  EXPECT_EQ(lines_.too_long(), 2);
}

TEST_F(Followed, OfALongFileEveryLineIsThere) {
  std::string text;
  for (int i = 0; i < 500'000; ++i) text += std::to_string(i) + "\n";  // several reads
  write(text);
  int64_t expected = -1;
  const auto anew = [&] { expected = 0; };
  const auto count = [&](std::string_view line) { expected += line == std::to_string(expected) ? 1 : 0; };
  lines_.read_on(anew, count);
  EXPECT_EQ(expected, 500'000);
  append("500000\n");
  lines_.read_on(anew, count);
  EXPECT_EQ(expected, 500'001);
}

TEST_F(Followed, WhatCannotBeReadHasNoLines) {
  write("a\n");
  read_on();
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  std::vector<std::string> read;
  EXPECT_THROW(lines_.read_on([&] { read.emplace_back("anew"); }, [](std::string_view) {}), UserError);
  EXPECT_THAT(read, ElementsAre("anew"));
  std::filesystem::remove(path_);
  write("b\n");
  EXPECT_THAT(read_on(), ElementsAre("anew", "b"));
}

}  // namespace
}  // namespace hone
