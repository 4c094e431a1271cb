// Charts for a terminal: lines, bars and heat maps. A line chart is drawn with braille dots (2 x 4 to a character).
#pragma once

#include <cstdint>
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

// Horizontal bars for a terminal: how many of what.

struct Bar {
  std::string label;
  int64_t count = 0;
  std::string note = {};  ///< behind the count
};

/// A line for each bar, labels aligned on the right, the longest bar as long as `width` columns leave room for (at
/// least 10), in eighths of a column; what is not 0 shows. Each line ends in '\n'.
///    100–199  ███████████▌ 1,204
std::string bar_chart(std::span<const Bar> bars, int width, bool color);

// A heat map for a terminal: rows x columns of values between 0 and 1.

struct HeatMap {
  std::string title;
  std::vector<std::string> row_labels;  ///< one a row
  int columns = 0;
  std::vector<double> values;                     ///< [rows, columns] row after row; outside of [0, 1] is clamped
  std::string column_title = {};                  ///< what the columns are: "expert"
  std::string low_label = "0", high_label = "1";  ///< at the ends of the legend
};

struct HeatMapOptions {
  int max_width = 100;  ///< columns of the terminal
  bool color = false;   ///< 256-colour backgrounds; otherwise shade characters · ░ ▒ ▓ █
};

/// Lines that each end in '\n', columns numbered from 0, a legend below. Where the columns do not fit, neighbours are
/// drawn as one cell that shows the largest of them, and the map says so. A value that is NaN is drawn as '?'.
std::string heat_map(const HeatMap& map, const HeatMapOptions& options);

}  // namespace hone
