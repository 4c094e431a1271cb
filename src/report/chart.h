// A line chart for a terminal, drawn with braille dots (2 x 4 to a character).
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hone {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< (x, y), x ascending
  bool marks = false;                             ///< single marks (few points, as evaluations) rather than a line
};

struct ChartOptions {
  int width = 80;   ///< columns of the whole chart, at least 30
  int height = 12;  ///< rows of the plot itself, at least 3
  std::string title = {};
  std::string x_label = "step";
  bool color = false;
};

/// Lines that each end in '\n':
///
///     loss
///    4.0 ┤⡆
///    3.0 ┤⠱⡀
///    2.0 ┤ ⠈⠒⠤⣀
///        └┬────┬─────
///         0    500    step
///
/// Where several points share a column of dots, their mean is drawn. Points that are not finite are left out and
/// counted below the chart. Without a point that can be drawn the chart says so.
std::string line_chart(std::span<const ChartSeries> series, const ChartOptions& options);

}  // namespace hone
