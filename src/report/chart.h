// Charts for a terminal: lines, bars and heat maps. Line charts use braille dots (2 x 4 per character).
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
  bool marks = false;  ///< draw single marks (few points, for example evaluations) instead of a line
};

struct ChartOptions {
  int width = 80;   ///< columns of the whole chart, at least 30
  int height = 12;  ///< rows of the plot, at least 3
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
/// If several points share a column of dots, draws their mean. Omits points that are not finite, and reports their
/// number below the chart. A chart without points has a text that says so.
std::string line_chart(std::span<const ChartSeries> series, const ChartOptions& options);

// Bar charts for a terminal: horizontal bars for counts.

struct Bar {
  std::string label;
  int64_t count = 0;
  std::string note = {};  ///< after the count
};

/// One line per bar, with right-aligned labels. The longest bar has the length that `width` columns allow (at least
/// 10), in eighths of a column; a count above 0 is always visible. Each line ends in '\n'.
///    100–199  ███████████▌ 1,204
std::string bar_chart(std::span<const Bar> bars, int width, bool color);

// Heat maps for a terminal: rows x columns of values between 0 and 1.

struct HeatMap {
  std::string title;
  std::vector<std::string> row_labels;  ///< one per row
  int columns = 0;
  std::vector<double> values;                     ///< [rows, columns] row-major; clamped to [0, 1]
  std::string column_title = {};                  ///< the name of the columns: "expert"
  std::string low_label = "0", high_label = "1";  ///< at the ends of the legend
};

struct HeatMapOptions {
  int max_width = 100;  ///< columns of the terminal
  bool color = false;   ///< 256-colour backgrounds; otherwise shade characters · ░ ▒ ▓ █
};

/// Lines that each end in '\n', with columns numbered from 0 and a legend below. If the columns do not fit, adjacent
/// columns share a cell that shows the largest value, and the map says so. A NaN is drawn as '?'.
std::string heat_map(const HeatMap& map, const HeatMapOptions& options);

}  // namespace hone
