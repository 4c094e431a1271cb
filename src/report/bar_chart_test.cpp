#include "report/bar_chart.h"

#include <gtest/gtest.h>

#include <vector>

#include "report/terminal.h"

namespace hone {
namespace {

TEST(BarChart, TheLongestBarFillsTheWidthAndNothingElseIsLonger) {
  const std::vector<Bar> bars = {{"0–9", 500}, {"10–19", 1000, "half"}, {"20–99", 1}, {"100", 0}};
  const std::vector<std::string> lines = split_lines(bar_chart(bars, 40, false));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(display_width(lines[1]), 40);
  EXPECT_EQ(lines[0], "    0–9  █████████▌ 500");
  EXPECT_EQ(lines[1], "  10–19  ███████████████████ 1,000  half");
  EXPECT_EQ(lines[2], "  20–99  ▏ 1");
  EXPECT_EQ(lines[3], "    100   0");
}

TEST(BarChart, KeepsBarsWhereThereIsNoRoomAndWithoutAny) {
  const std::vector<Bar> bars = {{"a long label that takes the whole line", 3}};
  EXPECT_NE(bar_chart(bars, 10, false).find("██████████ 3"), std::string::npos);
  EXPECT_EQ(bar_chart({}, 80, true), "");
}

}  // namespace
}  // namespace hone
