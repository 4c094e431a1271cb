#include "report/heat_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "report/terminal.h"

namespace hone {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace hone
