#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "report/chart.h"
#include "report/terminal.h"
#include "report/text_mask.h"

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

TEST(HeatMap, WithoutColourUsesShades) {
  const HeatMap map{.title = "expert load",
                    .row_labels = {"layer 0", "layer 1"},
                    .columns = 5,
                    .values = {0, 0.25, 0.5, 0.75, 1, 2, -1, 0.1, std::numeric_limits<double>::quiet_NaN(), 1},
                    .column_title = "expert",
                    .low_label = "idle",
                    .high_label = "busiest"};
  EXPECT_EQ(heat_map(map, {}),
            "  expert load\n"
            "   expert  0  1  2  3  4\n"
            "  layer 0  ·· ░░ ▒▒ ▓▓ ██\n"
            "  layer 1  ██ ·· ·· ?  ██\n"
            "           idle ··░░▒▒▓▓██ busiest\n");
}

TEST(HeatMap, ColourCellsAreAsWideAndEndTheirColour) {
  const HeatMap map{.title = "", .row_labels = {"a"}, .columns = 2, .values = {0, 1}};
  const auto lines = split_lines(heat_map(map, {.color = true}));
  EXPECT_EQ(lines[1], "  a  \x1b[48;5;53m   \x1b[0m\x1b[48;5;220m   \x1b[0m");
  EXPECT_EQ(display_width(lines[1]), 5 + 2 * 3);
}

TEST(HeatMap, ManyExpertsFitTheTerminalAndTheLargestStaysVisible) {
  for (const int experts : {8, 64, 128, 256, 512}) {
    HeatMap map{.title = "load", .row_labels = {"layer 0"}, .columns = experts, .values = {}};
    map.values.assign(static_cast<size_t>(experts), 0.0);
    map.values[static_cast<size_t>(experts) - 3] = 1.0;
    const std::string text = heat_map(map, {.max_width = 100});
    for (const auto& line : split_lines(text)) EXPECT_LE(display_width(line), 100) << experts;
    EXPECT_THAT(split_lines(text)[2], HasSubstr("█")) << experts;
    EXPECT_EQ(text.find("neighbours") != std::string::npos, experts > 89) << experts;
  }
}

TEST(HeatMap, TwoMapsStandBesideEachOther) {
  const HeatMap map{.title = "English", .row_labels = {"0"}, .columns = 2, .values = {0, 1}};
  const std::string one = heat_map(map, {}), two = side_by_side(one, one);
  EXPECT_EQ(split_lines(two).size(), split_lines(one).size());
}

TEST(TextMask, WithoutColourBracketsWhatIsSupervised) {
  const std::vector<MaskPiece> pieces = {
      {"<user>", false}, {"hi\n", false}, {"Hel", true}, {"lo", true}, {"\n", false}};
  EXPECT_EQ(text_mask(pieces, {}), "<user>hi⏎\n[[Hello]]⏎\n[[supervised]]: 2 of 5 tokens (40.0%)\n");
}

TEST(TextMask, InColourTheRestIsDimAndNoLineStaysGreen) {
  const std::vector<MaskPiece> pieces = {{"hi ", false}, {"a\nb", true}};
  const std::string text = text_mask(pieces, {.color = true});
  EXPECT_THAT(text, HasSubstr("\x1b[2mhi \x1b[0m\x1b[32ma⏎\x1b[0m\n\x1b[32mb\x1b[0m\n"));
}

TEST(TextMask, ACharacterSpreadOverTokensIsWholeAgain) {
  const std::vector<MaskPiece> pieces = {{"gr\xC3", true}, {"\xBC\xC3\x9F", true}};
  EXPECT_THAT(text_mask(pieces, {}), HasSubstr("[[grüß]]"));
  const std::vector<MaskPiece> split = {{"\xC3", true}, {"\xBC", false}};
  EXPECT_THAT(text_mask(split, {}), HasSubstr("[[<0xC3>]]<0xBC>"));
}

TEST(TextMask, ControlCharactersAreShownNotExecuted) {
  const std::vector<MaskPiece> pieces = {{"\t\x1b[2J\x7F\r", false}, {"\u202Eabc\xC2\x9B", true}};
  EXPECT_THAT(text_mask(pieces, {}), HasSubstr("⇥␛[2J␡␍[[<U+202E>abc<U+009B>]]"));
}

TEST(TextMask, ALongSampleIsCutAndCountedWhole) {
  const std::vector<MaskPiece> pieces(2000, {"x", true});
  EXPECT_EQ(text_mask(pieces, {.max_tokens = 3}),
            "[[xxx]]\n… 1,997 more tokens\n[[supervised]]: 2,000 of 2,000 tokens (100.0%)\n");
}

TEST(TextMask, NoTokensIsNotAnError) { EXPECT_EQ(text_mask({}, {}), "[[supervised]]: 0 of 0 tokens (0.0%)\n"); }

TEST(TextMask, LongStretchesKeepTheirBeginningAndEnd) {
  std::vector<MaskPiece> pieces;
  for (int i = 0; i < 10; ++i) pieces.push_back({std::string(1, static_cast<char>('a' + i)), false});
  for (int i = 0; i < 4; ++i) pieces.push_back({std::to_string(i), true});
  EXPECT_EQ(text_mask(pieces, {.max_span = 4}), "ab … 6 tokens … ij[[0123]]\n[[supervised]]: 4 of 14 tokens (28.6%)\n");
}

}  // namespace
}  // namespace hone
