#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "report/console.h"
#include "report/folder_testing.h"
#include "report/log.h"
#include "report/step_line.h"
#include "report/terminal.h"

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
  EXPECT_EQ(short_line("a\n"), "a\\n");
  EXPECT_EQ(short_line(std::string(301, 'a')), std::string(300, 'a') + "...");
  EXPECT_EQ(one_line("\x1b[31mred"), "\\x1b[31mred");
  EXPECT_EQ(one_line("\xC2\x9B"
                     "31m"),
            "\\u009b31m");
  EXPECT_EQ(one_line("gr\xC3\xBC\xFF"), "gr\xC3\xBC\\xff");
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

// A console that writes to a file, and the screen of a terminal of that width.
class Screen {
 public:
  explicit Screen(bool interactive, bool color = false, int width = 60)
      : fd_(open((folder_ / "out").c_str(), O_RDWR | O_CREAT | O_APPEND, 0600)),
        terminal_{.fd = fd_, .interactive = interactive, .color = color, .fixed_width = width} {}
  ~Screen() { close(fd_); }

  const Terminal& terminal() const { return terminal_; }
  std::string raw() const { return read_text(folder_ / "out"); }

  // Interprets the output of the console: text, '\n', and "\r ESC [2K".
  std::string shown() const {
    std::string text = raw(), screen;
    for (size_t at = 0; at < text.size();) {
      if (text.compare(at, 5, "\r\x1b[2K") == 0) {
        screen.erase(screen.find_last_of('\n') + 1);
        at += 5;
      } else {
        screen += text[at++];
      }
    }
    return screen;
  }

 private:
  TestFolder folder_;
  int fd_;
  Terminal terminal_;
};

TEST(Console, APipeGetsPlainLinesAndNoBar) {
  Screen screen(false);
  Console console(screen.terminal());
  console.set_progress({.label = "train", .done = 1, .total = 2});
  console.line("one");
  console.line("two\nthree\n");
  console.clear_progress();
  EXPECT_EQ(screen.raw(), "one\ntwo\nthree\n");
}

TEST(Console, TheBarStaysBelowTheLines) {
  Screen screen(true);
  Console console(screen.terminal());
  console.set_progress({.label = "train", .done = 1, .total = 4});
  console.line("step 1");
  const std::string bar = progress_bar({.label = "train", .done = 1, .total = 4}, 59, false);
  EXPECT_EQ(screen.shown(), "step 1\n" + bar);
  console.set_progress({.label = "train", .done = 4, .total = 4});
  EXPECT_EQ(screen.shown(), "step 1\n" + progress_bar({.label = "train", .done = 4, .total = 4}, 59, false));
  console.clear_progress();
  EXPECT_EQ(screen.shown(), "step 1\n");
}

TEST(Console, TheBarIsGoneWhenTheConsoleIs) {
  Screen screen(true);
  { Console(screen.terminal()).set_progress({.label = "train", .done = 1, .total = 4}); }
  EXPECT_EQ(screen.shown(), "");
}

TEST(Console, FastProgressIsNotDrawnEveryTime) {
  Screen screen(true);
  Console console(screen.terminal());
  for (int i = 0; i < 1000; ++i) console.set_progress({.label = "tokenize", .done = i, .total = 1000});
  console.set_progress({.label = "tokenize", .done = 1000, .total = 1000});
  const std::string raw = screen.raw();
  int draws = 0;
  for (size_t at = raw.find('\r'); at != std::string::npos; at = raw.find('\r', at + 1)) ++draws;
  EXPECT_LT(draws, 100);
  EXPECT_NE(screen.shown().find("1,000/1,000"), std::string::npos) << "the last state is always drawn";
}

TEST(Console, LinesOfSeveralThreadsAreNotTorn) {
  Screen screen(true);
  {
    Console console(screen.terminal());
    console.set_progress({.label = "train", .done = 1, .total = 4});
    std::vector<std::thread> threads;
    for (char name = 'a'; name < 'e'; ++name) {
      threads.emplace_back([&console, name] {
        for (int i = 0; i < 50; ++i) console.line(std::string(30, name));
      });
    }
    for (auto& thread : threads) thread.join();
  }
  const auto lines = split_lines(screen.shown());
  EXPECT_EQ(lines.size(), 200u);
  for (const auto& line : lines) EXPECT_EQ(line, std::string(30, line.at(0)));
}

TEST(Console, AClosedOutputDoesNotStopTheRun) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  const auto before = signal(SIGPIPE, SIG_IGN);
  Console({.fd = ends[1]}).line("nobody reads this");
  signal(SIGPIPE, before);
  close(ends[1]);
}

TEST(ProgressBar, FitsEveryWidth) {
  const Progress progress{.label = "train", .done = 840, .total = 2000, .detail = "epoch 1.26/3", .seconds_left = 3720};
  EXPECT_EQ(progress_bar(progress, 79, false),
            "  train ━━━━━━━━━━━╸────────────────  42%  840/2,000  epoch 1.26/3  1h02m left");
  for (int width = 1; width < 200; ++width) {
    EXPECT_LE(display_width(progress_bar(progress, width, true)), width);
  }
}

TEST(ProgressBar, AnUnknownTotalShowsTheCount) {
  EXPECT_EQ(progress_bar({.label = "read", .done = 1234, .total = 0}, 79, false), "  read 1,234");
}

TEST(ProgressBar, IsFullOnlyAtTheEnd) {
  EXPECT_NE(progress_bar({.label = "x", .done = 9999, .total = 10000}, 79, false).find(" 99%"), std::string::npos);
  EXPECT_EQ(progress_bar({.label = "x", .done = 10000, .total = 10000}, 79, false).find("─"), std::string::npos);
}

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

TEST_F(LogTest, LinesThatDidNotFitAreWrittenWholeOnceThereIsRoom) {
  Logger log(console_, LogLevel::kError);
  log.open_file(folder_ / "out/run.log");
  {
    const FileSizeLimit limit(150);
    for (const char c : {'a', 'b', 'c'}) log.info("{}", std::string(100, c));
  }
  log.info("there is room");
  const auto lines = split_lines(logged());
  ASSERT_EQ(lines.size(), 4u) << logged();
  for (const std::string& line : lines)
    EXPECT_THAT(line, testing::MatchesRegex("....-..-.. ..:..:......  INFO     .+"));
  EXPECT_THAT(lines[1], testing::EndsWith(std::string(100, 'b')));
}

TEST_F(LogTest, TheFileIsWrittenWhetherOrNotItIsStillInItsFolder) {
  Logger log(console_, LogLevel::kInfo);
  log.open_file(folder_ / "out/run.log");
  std::filesystem::rename(folder_ / "out", folder_ / "moved");
  log.info("one");
  EXPECT_THAT(read_text(folder_ / "moved/run.log"), HasSubstr("one\n"));
  std::filesystem::remove_all(folder_ / "moved");
  log.info("two");
  EXPECT_EQ(shown(), "one\ntwo\n");
}

TEST_F(LogTest, ThreadsDoNotMixTheirLines) {
  Logger log(console_, LogLevel::kError);
  log.open_file(folder_ / "out/run.log");
  std::vector<std::thread> threads;
  for (const char c : {'a', 'b', 'c', 'd'}) {
    threads.emplace_back([&log, c] {
      for (int i = 0; i < 100; ++i) log.info("{}", std::string(200, c));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto lines = split_lines(logged());
  EXPECT_EQ(lines.size(), 400u);
  for (const std::string& line : lines) {
    const std::string text = line.substr(line.rfind(' ') + 1);
    EXPECT_EQ(text, std::string(200, text[0]));
  }
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

StepMetrics moe_step(int64_t step) {
  return {.step = step,
          .loss = 1.23456,
          .grad_norm = 0.8731,
          .learning_rate = 9.85e-5,
          .tokens_per_second = 3417,
          .mean_token_accuracy = 0.7812,
          .max_alloc = 12.3e9,
          .eta = 3720,
          .router_load_max_over_mean = 1.321};
}

TEST(StepLine, FitsAHundredColumnsWithEverythingButTheAccuracy) {
  EXPECT_EQ(step_line(moe_step(120), {.total_steps = 2000}),
            "   120/2000  loss 1.2346  grad 0.873  lr 9.85e-5   3.4k tok/s  mem 12.3 GB  expert 1.32x  eta  1h02m");
}

TEST(StepLine, AWiderTerminalShowsTheAccuracyToo) {
  EXPECT_THAT(step_line(moe_step(120), {.total_steps = 2000, .width = 120}), HasSubstr("  acc  78.1%  "));
}

TEST(StepLine, NeverWrapsAndKeepsTheLossLongest) {
  for (int width = 24; width < 140; ++width) {
    const std::string line = step_line(moe_step(120), {.total_steps = 2000, .width = width, .color = true});
    EXPECT_LE(display_width(line), width);
    EXPECT_THAT(strip_color(line), HasSubstr("loss 1.2346"));
  }
}

TEST(StepLine, ColumnsStayFromStepToStep) {
  StepMetrics early = moe_step(9), late = moe_step(1999);
  early.loss = 11.5;
  early.grad_norm = 12.34;
  early.tokens_per_second = 812;
  early.max_alloc = 912e6;
  early.eta = 5.5;
  const std::string a = step_line(early, {.total_steps = 2000}), b = step_line(late, {.total_steps = 2000});
  EXPECT_EQ(a.size(), b.size());
  EXPECT_EQ(a.find("lr"), b.find("lr"));
  EXPECT_EQ(a.find("eta"), b.find("eta"));
}

TEST(StepLine, NaNIsShownInRed) {
  StepMetrics m = moe_step(1);
  m.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(step_line(m, {.total_steps = 10}), HasSubstr("loss    NaN"));
  EXPECT_THAT(step_line(m, {.total_steps = 10, .color = true}), HasSubstr("\x1b[31mNaN"));
}

TEST(StepLine, ADenseModelHasNoRouterField) {
  StepMetrics m = moe_step(1);
  m.router_load_max_over_mean.reset();
  EXPECT_THAT(step_line(m, {.total_steps = 10}), Not(HasSubstr("expert")));
}

TEST(EvalLine, ShowsWhatAPersonComparesAndTheBest) {
  const EvalMetrics m{.step = 120,
                      .eval_loss = 0.9123,
                      .eval_perplexity = 2.49,
                      .eval_mean_token_accuracy = 0.812,
                      .seconds = 3.2,
                      .is_best = true};
  EXPECT_EQ(eval_line(m, {.total_steps = 2000}),
            "   120/2000  eval loss 0.9123  perplexity 2.49  accuracy 81.2%  in 3.2s  best so far");
}

TEST(StepWindow, OneStepComesBackBitForBit) {
  StepWindow window;
  window.add({.step = 1, .loss = 0.1, .step_supervised_tokens = 3});
  EXPECT_EQ(window.take().loss, 0.1) << "0.1 * 3 / 3 would not be 0.1";
  EXPECT_TRUE(window.empty());
}

TEST(StepWindow, LossIsTheMeanOverSupervisedTokens) {
  StepWindow window;
  window.add({.step = 1, .loss = 1.0, .mean_token_accuracy = 0.5, .step_supervised_tokens = 300});
  window.add({.step = 2, .loss = 5.0, .mean_token_accuracy = 0.0, .step_supervised_tokens = 100});
  const StepMetrics mean = window.take();
  EXPECT_DOUBLE_EQ(mean.loss, 2.0);
  EXPECT_DOUBLE_EQ(*mean.mean_token_accuracy, 0.375);
  EXPECT_EQ(mean.step, 2);
}

TEST(StepWindow, SpeedIsTotalOverTotalTime) {
  StepWindow window;
  window.add({.tokens_per_second = 1000, .step_time = 1.0});
  window.add({.tokens_per_second = 100, .step_time = 9.0});
  const StepMetrics mean = window.take();
  EXPECT_DOUBLE_EQ(mean.tokens_per_second, 190.0);
  EXPECT_DOUBLE_EQ(mean.step_time, 5.0);
}

TEST(StepWindow, MemoryIsTheLargestDroppedTokensAddAndTheRestIsTheLast) {
  StepWindow window;
  window.add({.grad_norm = 3, .max_alloc = 20.0, .router_dropped_tokens = 1.0});
  window.add({.grad_norm = 2, .max_alloc = 10.0, .router_dropped_tokens = 2.0, .dropped_samples = 7.0});
  const StepMetrics mean = window.take();
  EXPECT_EQ(mean.grad_norm, 2);
  EXPECT_EQ(mean.max_alloc, 20.0);
  EXPECT_EQ(mean.router_dropped_tokens, 3.0);
  EXPECT_EQ(mean.dropped_samples, 7.0);
  EXPECT_FALSE(mean.router_entropy.has_value());
}

TEST(StepWindow, ADatasetThatWasNotInEveryStepHasItsOwnMean) {
  StepWindow window;
  window.add({.dataset_loss = {{"chat", 1.0, 1}}});
  window.add({.dataset_loss = {{"chat", 4.0, 2}, {"faq", 9.0, 5}}});
  const StepMetrics mean = window.take();
  ASSERT_EQ(mean.dataset_loss.size(), 2u);
  EXPECT_DOUBLE_EQ(mean.dataset_loss[0].value, 3.0);
  EXPECT_DOUBLE_EQ(mean.dataset_loss[1].value, 9.0);
}

TEST(StepWindow, NaNIsNotAveragedAway) {
  StepWindow window;
  window.add({.loss = std::numeric_limits<double>::quiet_NaN(), .step_supervised_tokens = 1});
  window.add({.loss = 1.0, .step_supervised_tokens = 1});
  EXPECT_TRUE(std::isnan(window.take().loss));
}

}  // namespace
}  // namespace hone
