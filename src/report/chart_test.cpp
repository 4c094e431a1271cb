#include "report/chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "report/terminal.h"

namespace hone {
namespace {

using testing::HasSubstr;
using testing::Not;

ChartSeries falling(int points) {
  ChartSeries series{.name = "loss", .points = {}};
  for (int i = 0; i < points; ++i) series.points.emplace_back(i, 4.0 * std::exp(-3.0 * i / points));
  return series;
}

TEST(LineChart, ARisingLineGoesFromTheLowerLeftToTheUpperRight) {
  const std::vector<ChartSeries> series = {{"y", {{0, 0}, {1, 1}}}};
  EXPECT_EQ(line_chart(series, {.width = 30, .height = 3, .title = "y"}),
            "  y\n"
            "  1.0 ┤               ⢀⣀⡠⠤⠔⠒⠊⠉\n"
            "  0.5 ┤       ⢀⣀⡠⠤⠔⠒⠊⠉⠁\n"
            "  0.0 ┤⣀⡠⠤⠔⠒⠊⠉⠁\n"
            "      └┬─────────────────────┬\n"
            "       0                     1\n"
            "                step\n");
}

TEST(LineChart, FitsItsWidthAndHeight) {
  for (int width = 30; width < 140; width += 7) {
    for (int height = 3; height < 20; height += 3) {
      const std::vector<ChartSeries> series = {falling(1000)};
      const auto lines = split_lines(line_chart(series, {.width = width, .height = height, .color = true}));
      EXPECT_EQ(lines.size(), static_cast<size_t>(height) + 3);
      for (const auto& line : lines) EXPECT_LE(display_width(line), width);
    }
  }
}

TEST(LineChart, LabelsAreRoundNumbersThatCoverTheValues) {
  const std::vector<ChartSeries> series = {{"loss", {{0, 3.97}, {250000, 0.21}}}};
  const std::string chart = line_chart(series, {.width = 80, .height = 12});
  for (const char* label : {"4 ┤", "0 ┤", "100k", "200k"}) EXPECT_THAT(chart, HasSubstr(label));
}

TEST(LineChart, APointThatIsNotFiniteIsCountedNotDrawn) {
  auto series = falling(100);
  series.points[50].second = std::numeric_limits<double>::quiet_NaN();
  series.points[51].second = std::numeric_limits<double>::infinity();
  EXPECT_THAT(line_chart(std::vector{series}, {}), HasSubstr("2 points are not finite and are not drawn"));
}

TEST(LineChart, OnePointAFlatLineAndNothingAreCharts) {
  EXPECT_THAT(line_chart(std::vector<ChartSeries>{{"a", {{5, 2}}}}, {}), Not(HasSubstr("nan")));
  EXPECT_THAT(line_chart(std::vector<ChartSeries>{{"a", {{1, 0}, {2, 0}, {3, 0}}}}, {}), Not(HasSubstr("nan")));
  EXPECT_THAT(line_chart(std::vector<ChartSeries>{{"a", {}}}, {.title = "loss"}), HasSubstr("no points to draw"));
  EXPECT_THAT(line_chart(std::vector<ChartSeries>{}, {}), HasSubstr("no points to draw"));
}

TEST(LineChart, TwoSeriesHaveALegendAndMarksLieOverTheLine) {
  auto eval = ChartSeries{.name = "eval_loss", .points = {{0, 4}, {50, 1}}, .marks = true};
  const std::string chart = line_chart(std::vector{falling(100), eval}, {.title = "loss"});
  EXPECT_THAT(chart, HasSubstr("loss   ⠤⠤ loss   ● eval_loss"));
  EXPECT_THAT(chart.substr(chart.find('\n')), HasSubstr("●"));
}

}  // namespace
}  // namespace hone
