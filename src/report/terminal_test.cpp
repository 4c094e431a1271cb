#include "report/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

namespace hone {
namespace {

TEST(Terminal, APipeIsNeitherInteractiveNorColoured) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Terminal terminal = Terminal::of(ends[1]);
  EXPECT_FALSE(terminal.interactive);
  EXPECT_FALSE(terminal.color);
  EXPECT_EQ(terminal.width(), 100);
  close(ends[0]);
  close(ends[1]);
}

TEST(Terminal, NoColorKeepsRedrawingButDropsColour) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(master, 0);
  ASSERT_EQ(grantpt(master), 0);
  ASSERT_EQ(unlockpt(master), 0);
  const int terminal_fd = open(ptsname(master), O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal_fd, 0);
  setenv("TERM", "xterm-256color", 1);
  unsetenv("NO_COLOR");
  EXPECT_TRUE(Terminal::of(terminal_fd).color);
  setenv("NO_COLOR", "1", 1);
  EXPECT_TRUE(Terminal::of(terminal_fd).interactive);
  EXPECT_FALSE(Terminal::of(terminal_fd).color);
  setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(Terminal::of(terminal_fd).color) << "an empty NO_COLOR does not count";
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(Terminal::of(terminal_fd).interactive);
  unsetenv("NO_COLOR");
  close(terminal_fd);
  close(master);
}

TEST(DisplayWidth, CountsColumnsNotBytes) {
  EXPECT_EQ(display_width("loss"), 4);
  EXPECT_EQ(display_width("größe"), 5);
  EXPECT_EQ(display_width("日本"), 4);
  EXPECT_EQ(display_width("e\xCC\x81"), 1) << "a combining accent takes no column";
  EXPECT_EQ(display_width(styled("loss", Style::kGreen, true)), 4);
  EXPECT_EQ(display_width("\xFF\xFE"), 2) << "invalid bytes show as one replacement character each";
}

TEST(NextCodePoint, RefusesOverlongSurrogatesAndTruncation) {
  for (const std::string_view bad : {"\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    size_t at = 0;
    EXPECT_EQ(next_code_point(bad, at), kInvalidUtf8);
    EXPECT_EQ(at, 1u);
  }
  size_t at = 0;
  EXPECT_EQ(next_code_point("\xF0\x9F\x98\x80", at), 0x1F600u);
  EXPECT_EQ(at, 4u);
}

TEST(FitWidth, CutsWithAnEllipsisAndKeepsColourSequences) {
  EXPECT_EQ(fit_width("checkpoint", 10), "checkpoint");
  EXPECT_EQ(fit_width("checkpoint", 6), "check…");
  EXPECT_EQ(fit_width("日本語", 4), "日…");
  EXPECT_EQ(fit_width(styled("checkpoint", Style::kRed, true), 4), "\x1b[31mche…\x1b[0m");
  EXPECT_EQ(fit_width("abc", 0), "");
}

TEST(OneLine, MakesControlCharactersVisible) {
  EXPECT_EQ(one_line("\u202ea\u2066\u2028"), "\\u202ea\\u2066\\u2028");
  EXPECT_EQ(one_line("a\nb\tc"), "a\\nb\\tc");
  EXPECT_EQ(one_line("\x1b[31mred"), "\\x1b[31mred");
  EXPECT_EQ(one_line("\xC2\x9B"
                     "31m"),
            "\\u009b31m");
  EXPECT_EQ(one_line("gr\xC3\xBC\xFF"), "gr\xC3\xBC\\xff");
}

TEST(SideBySide, AlignsTheRightBlock) {
  EXPECT_EQ(side_by_side("a\nbbb\n", "x\ny\nz\n", 2), "a    x\nbbb  y\n     z\n");
  EXPECT_EQ(side_by_side("a\nb\n", "x\n", 2), "a  x\nb\n");
}

TEST(Wrap, LinesEndBetweenWords) {
  EXPECT_EQ(wrap("one two three four", 9, "  "), "one two\n  three\n  four");
  EXPECT_EQ(wrap("one two", 7, "  "), "one two");
  EXPECT_EQ(wrap("a-word-that-is-longer than", 10, "  "), "a-word-that-is-longer\n  than");
  EXPECT_EQ(wrap("  indented text here", 12, "    "), "  indented\n    text\n    here");
  EXPECT_EQ(wrap("first\nsecond line", 6, ""), "first\nsecond\nline");
  EXPECT_EQ(wrap("", 10, " "), "");
  EXPECT_EQ(wrap("日本 日本", 5, ""), "日本\n日本");
}

}  // namespace
}  // namespace hone
