#include "report/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "report/terminal.h"

namespace hone {
namespace {

// From dark violet over teal to yellow: the xterm colours nearest to viridis, which stays ordered for colour-blind
// readers and in grey.
constexpr std::array kRamp = {53, 54, 24, 30, 36, 71, 113, 148, 184, 220};
constexpr std::array<std::string_view, 5> kShades = {"·", "░", "▒", "▓", "█"};
constexpr int kWidestCell = 3;

template <size_t N, class T>
const T& level(const std::array<T, N>& levels, double value) {
  const double clamped = std::clamp(value, 0.0, 1.0);
  return levels[std::min(N - 1, static_cast<size_t>(clamped * static_cast<double>(N)))];
}

std::string repeat(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

std::string cell(double value, int width, bool color) {
  if (std::isnan(value)) return pad_right("?", width);
  if (color)
    return fmt::format("\x1b[48;5;{}m{}\x1b[0m", level(kRamp, value), std::string(static_cast<size_t>(width), ' '));
  // A space between cells keeps columns apart where shades are equal.
  return width == 1 ? std::string(level(kShades, value)) : repeat(level(kShades, value), width - 1) + " ";
}

// How many columns share a cell, and how wide a cell is.
struct Grid {
  int group = 1, cells = 0, cell_width = kWidestCell;
};

Grid fit(int columns, int room) {
  Grid grid{.group = 1, .cells = columns};
  while (grid.cell_width > 1 && columns * grid.cell_width > room) --grid.cell_width;
  if (columns > room) {
    grid.group = (columns + room - 1) / room;
    grid.cells = (columns + grid.group - 1) / grid.group;
  }
  return grid;
}

double largest(const double* values, int count) {
  double result = values[0];
  for (int i = 0; i < count; ++i) {
    if (std::isnan(values[i])) return values[i];
    result = std::max(result, values[i]);
  }
  return result;
}

// Numbers of the columns, as many as fit with a space between them.
std::string column_numbers(const Grid& grid, int columns) {
  const int widest = static_cast<int>(std::to_string(columns - 1).size());
  int every = (widest + 1 + grid.cell_width - 1) / grid.cell_width;
  for (const int nice : {1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128}) {
    if (nice >= every) {
      every = nice;
      break;
    }
  }
  std::string line;
  for (int c = 0; c < grid.cells; c += every) {
    line = pad_right(line, c * grid.cell_width) + std::to_string(c * grid.group);
  }
  return line;
}

std::string legend(const HeatMap& map, bool color) {
  std::string ramp;
  for (size_t i = 0; i < kRamp.size() && color; ++i) ramp += fmt::format("\x1b[48;5;{}m  \x1b[0m", kRamp[i]);
  for (size_t i = 0; i < kShades.size() && !color; ++i) ramp += repeat(kShades[i], 2);
  return one_line(map.low_label) + " " + ramp + " " + one_line(map.high_label);
}

}  // namespace

std::string heat_map(const HeatMap& map, const HeatMapOptions& options) {
  const int rows = static_cast<int>(map.row_labels.size());
  HONE_ASSERT(map.columns > 0 && map.values.size() == static_cast<size_t>(rows) * static_cast<size_t>(map.columns));
  int label_width = display_width(map.column_title);
  for (const auto& label : map.row_labels) label_width = std::max(label_width, display_width(one_line(label)));
  const Grid grid = fit(map.columns, std::max(1, options.max_width - label_width - 4));

  const std::string margin = "  ";
  std::string text;
  if (!map.title.empty()) text += margin + styled(one_line(map.title), Style::kBold, options.color) + "\n";
  text += margin +
          styled(pad_left(one_line(map.column_title), label_width) + "  " + column_numbers(grid, map.columns),
                 Style::kDim, options.color) +
          "\n";
  for (int r = 0; r < rows; ++r) {
    text += margin + pad_left(one_line(map.row_labels[static_cast<size_t>(r)]), label_width) + "  ";
    std::string cells;
    for (int c = 0; c < map.columns; c += grid.group) {
      const double* first =
          &map.values[static_cast<size_t>(r) * static_cast<size_t>(map.columns) + static_cast<size_t>(c)];
      cells += cell(largest(first, std::min(grid.group, map.columns - c)), grid.cell_width, options.color);
    }
    text += cells.erase(cells.find_last_not_of(' ') + 1) + "\n";
  }
  const std::string below = margin + std::string(static_cast<size_t>(label_width + 2), ' ');
  text += below + legend(map, options.color) + "\n";
  if (grid.group > 1) text += below + fmt::format("each cell: the largest of {} neighbours\n", grid.group);
  return text;
}

}  // namespace hone
