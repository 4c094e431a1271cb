#include "report/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "report/folder_testing.h"

namespace hone {
namespace {

// A console that writes to a file, and what a terminal of that width would show of it.
class Screen {
 public:
  explicit Screen(bool interactive, bool color = false, int width = 60)
      : fd_(open((folder_ / "out").c_str(), O_RDWR | O_CREAT | O_APPEND, 0600)),
        terminal_{.fd = fd_, .interactive = interactive, .color = color, .fixed_width = width} {}
  ~Screen() { close(fd_); }

  const Terminal& terminal() const { return terminal_; }
  std::string raw() const { return read_text(folder_ / "out"); }

  // Understands what the console may write: text, '\n', and "\r ESC [2K".
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

}  // namespace
}  // namespace hone
