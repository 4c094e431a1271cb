#include "report/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "core/error.h"
#include "report/folder_testing.h"

namespace hone {
namespace {

using testing::HasSubstr;
using testing::Not;

class LogTest : public testing::Test {
 protected:
  LogTest() : fd_(open((folder_ / "console").c_str(), O_RDWR | O_CREAT | O_APPEND, 0600)), console_({.fd = fd_}) {}
  ~LogTest() override { close(fd_); }

  std::string shown() const { return read_text(folder_ / "console"); }
  std::string logged() const { return read_text(folder_ / "out/run.log"); }

  TestFolder folder_;
  int fd_;
  Console console_;
};

TEST_F(LogTest, LevelsAreNamedOnTheConsoleAndTheQuietOnesHidden) {
  Logger log(console_);
  log.debug("detail {}", 1);
  log.info("reading {}", "data.jsonl");
  log.warning("3 samples are too long");
  log.error("cannot open");
  EXPECT_EQ(shown(), "reading data.jsonl\nwarning: 3 samples are too long\nerror: cannot open\n");
}

TEST_F(LogTest, TheFileHasTimesLevelsAndWhatWasSaidBeforeItWasOpened) {
  Logger log(console_, LogLevel::kError);
  log.info("before");
  log.open_file(folder_ / "out/run.log");
  log.debug("after");
  const auto lines = split_lines(logged());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], testing::MatchesRegex("....-..-.. ..:..:......  INFO     before"));
  EXPECT_THAT(lines[1], HasSubstr("DEBUG    after"));
  EXPECT_EQ(shown(), "");
}

TEST_F(LogTest, AResumedRunAppends) {
  { Logger(console_).open_file(folder_ / "out/run.log"); }
  for (int i = 0; i < 2; ++i) {
    Logger log(console_);
    log.open_file(folder_ / "out/run.log");
    log.info("run {}", i);
  }
  EXPECT_EQ(split_lines(logged()).size(), 2u);
}

TEST_F(LogTest, AMessageCannotControlTheTerminal) {
  Logger log(console_);
  log.open_file(folder_ / "out/run.log");
  log.warning("bad text \x1b[2J in line\nsecond {{}} line");
  EXPECT_EQ(shown(), "warning: bad text \\x1b[2J in line\n  second {} line\n");
  EXPECT_THAT(logged(), Not(HasSubstr("\x1b")));
}

TEST_F(LogTest, ABlockKeepsItsColoursOnlyOnTheConsole) {
  Logger log(console_);
  log.open_file(folder_ / "out/run.log");
  log.block(styled("done", Style::kGreen, true) + "\n");
  EXPECT_EQ(shown(), "\x1b[32mdone\x1b[0m\n");
  EXPECT_THAT(logged(), HasSubstr("INFO     done\n"));
}

TEST_F(LogTest, AFullDiskWarnsOnceAndTheRunGoesOn) {
  Logger log(console_, LogLevel::kWarning);
  log.open_file(folder_ / "out/run.log");
  log.info("fits");
  {
    const FileSizeLimit limit(150);
    for (int i = 0; i < 5; ++i) log.info("{}", std::string(100, 'x'));
  }
  const std::string console_text = shown();
  EXPECT_THAT(console_text, AllOf(HasSubstr("warning: "), HasSubstr("/out/run.log cannot be written")));
  EXPECT_EQ(split_lines(console_text).size(), 1u) << console_text;
}

TEST_F(LogTest, AFolderThatCannotBeMadeIsTheUsersError) {
  Logger log(console_);
  write_text(folder_ / "file", "");
  EXPECT_THROW(log.open_file(folder_ / "file/run.log"), UserError);
}

TEST(LogLevel, IsParsedByName) {
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarning);
  EXPECT_EQ(parse_log_level("loud"), std::nullopt);
}

TEST_F(LogTest, DetailIsShownWhereDebugIsAndAlwaysInTheFile) {
  Logger quiet(console_);
  quiet.open_file(folder_ / "out/run.log");
  quiet.detail_block("a table\n");
  EXPECT_FALSE(quiet.shows(LogLevel::kDebug));
  EXPECT_EQ(shown(), "");
  EXPECT_THAT(logged(), HasSubstr("a table"));
  Logger verbose(console_, LogLevel::kDebug);
  verbose.detail_block("a table\n");
  EXPECT_EQ(shown(), "a table\n");
}

}  // namespace
}  // namespace hone
