// A heat map for a terminal: rows x columns of values between 0 and 1.
#pragma once

#include <string>
#include <vector>

namespace hone {

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
