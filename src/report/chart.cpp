#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/base/error.h"
#include "report/humanise.h"
#include "report/terminal.h"

namespace hone {
namespace {

constexpr int kDotsPerColumn = 2, kDotsPerRow = 4;
constexpr std::string_view kMark = "●";
constexpr Style kSeriesStyles[] = {Style::kCyan, Style::kYellow, Style::kGreen, Style::kRed};

struct Axis {
  double low = 0, high = 1;
  std::vector<double> ticks;
  int decimals = 0;

  // The relative position of `value`: 0 at low, 1 at high.
  double share(double value) const { return (value - low) / (high - low); }
  std::string label(double tick) const {
    // For steps of a long run 20k is shorter than 20000.
    if (decimals == 0 && std::max(std::abs(low), std::abs(high)) >= 1e5) return human_count(tick);
    return fmt::format("{:.{}f}", tick == 0 ? 0.0 : tick, decimals);
  }
};

// An axis with about `wanted` ticks at 1, 2 or 5 times a power of ten.
Axis make_axis(double low, double high, int wanted, bool extend) {
  if (high <= low) {
    const double margin = std::max(std::abs(low) * 0.1, 1e-6);
    low -= margin;
    high += margin;
  }
  const double rough = (high - low) / std::max(1, wanted);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double factor = rough / power;
  const double step = power * (factor < 1.5 ? 1 : factor < 3.5 ? 2 : factor < 7.5 ? 5 : 10);
  Axis axis{.low = low, .high = high, .ticks = {}};
  if (extend) {
    axis.low = std::floor(low / step + 1e-9) * step;
    axis.high = std::ceil(high / step - 1e-9) * step;
  }
  axis.decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 8);
  const double first = std::ceil(axis.low / step - 1e-9);
  for (int i = 0; i < 100; ++i) {
    const double tick = (first + i) * step;
    if (tick > axis.high + step * 1e-9) break;
    axis.ticks.push_back(tick);
  }
  return axis;
}

// The braille dots of the plot, and for each character the series that drew last.
class Canvas {
 public:
  Canvas(int columns, int rows)
      : columns_(columns), rows_(rows), dots_(columns * rows), owner_(columns * rows, 0), marked_(columns * rows) {}

  int dot_width() const { return columns_ * kDotsPerColumn; }
  int dot_height() const { return rows_ * kDotsPerRow; }

  void dot(int x, int y, size_t series) {
    static constexpr unsigned kBits[kDotsPerRow][kDotsPerColumn] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    const size_t cell = cell_of(x, y);
    dots_[cell] |= kBits[y % kDotsPerRow][x % kDotsPerColumn];
    owner_[cell] = series;
  }
  void mark(int x, int y, size_t series) {
    marked_[cell_of(x, y)] = true;
    owner_[cell_of(x, y)] = series;
  }
  // Draws a line (Bresenham).
  void line(int x0, int y0, int x1, int y1, size_t series) {
    const int dx = std::abs(x1 - x0), dy = -std::abs(y1 - y0);
    const int step_x = x0 < x1 ? 1 : -1, step_y = y0 < y1 ? 1 : -1;
    for (int error = dx + dy;;) {
      dot(x0, y0, series);
      if (x0 == x1 && y0 == y1) return;
      const int doubled = 2 * error;
      if (doubled >= dy) error += dy, x0 += step_x;
      if (doubled <= dx) error += dx, y0 += step_y;
    }
  }

  std::string row(int r, bool color) const {
    std::string text;
    for (int c = 0; c < columns_; ++c) {
      const size_t cell = static_cast<size_t>(r * columns_ + c);
      if (!marked_[cell] && dots_[cell] == 0) {
        text += ' ';
        continue;
      }
      text += styled(marked_[cell] ? std::string(kMark) : braille(dots_[cell]),
                     kSeriesStyles[owner_[cell] % std::size(kSeriesStyles)], color);
    }
    return text.erase(text.find_last_not_of(' ') + 1);
  }

 private:
  size_t cell_of(int x, int y) const { return static_cast<size_t>(y / kDotsPerRow * columns_ + x / kDotsPerColumn); }
  // U+2800 + bits in UTF-8.
  static std::string braille(unsigned bits) {
    return {static_cast<char>(0xE2), static_cast<char>(0xA0 | bits >> 6), static_cast<char>(0x80 | (bits & 0x3F))};
  }

  int columns_, rows_;
  std::vector<unsigned> dots_;
  std::vector<size_t> owner_;
  std::vector<bool> marked_;
};

struct Extent {
  double x_low = std::numeric_limits<double>::infinity(), x_high = -x_low;
  double y_low = x_low, y_high = -x_low;
  size_t drawable = 0, left_out = 0;
};

bool is_finite(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

Extent extent_of(std::span<const ChartSeries> series) {
  Extent extent;
  for (const auto& one : series) {
    for (const auto& point : one.points) {
      if (!is_finite(point)) {
        ++extent.left_out;
        continue;
      }
      ++extent.drawable;
      extent.x_low = std::min(extent.x_low, point.first);
      extent.x_high = std::max(extent.x_high, point.first);
      extent.y_low = std::min(extent.y_low, point.second);
      extent.y_high = std::max(extent.y_high, point.second);
    }
  }
  return extent;
}

int to_dot(double share, int dots) {
  return std::clamp(static_cast<int>(std::lround(share * (dots - 1))), 0, dots - 1);
}

void draw_line(Canvas& canvas, const ChartSeries& series, size_t index, const Axis& x, const Axis& y) {
  int last_x = -1, last_y = 0;
  for (size_t i = 0; i < series.points.size();) {
    if (!is_finite(series.points[i])) {
      ++i;
      continue;
    }
    const int at = to_dot(x.share(series.points[i].first), canvas.dot_width());
    double sum = 0;
    int count = 0;
    for (; i < series.points.size(); ++i) {
      if (!is_finite(series.points[i])) continue;
      if (to_dot(x.share(series.points[i].first), canvas.dot_width()) != at) break;
      sum += series.points[i].second;
      ++count;
    }
    const int height = to_dot(1 - y.share(sum / count), canvas.dot_height());
    if (last_x < 0)
      canvas.dot(at, height, index);
    else
      canvas.line(last_x, last_y, at, height, index);
    last_x = at;
    last_y = height;
  }
}

void draw_marks(Canvas& canvas, const ChartSeries& series, size_t index, const Axis& x, const Axis& y) {
  for (const auto& point : series.points) {
    if (!is_finite(point)) continue;
    canvas.mark(to_dot(x.share(point.first), canvas.dot_width()),
                to_dot(1 - y.share(point.second), canvas.dot_height()), index);
  }
}

std::string header(std::span<const ChartSeries> series, const ChartOptions& options) {
  std::string text = styled(one_line(options.title), Style::kBold, options.color);
  if (series.size() > 1) {
    for (size_t i = 0; i < series.size(); ++i) {
      if (!text.empty()) text += "   ";
      text += styled(series[i].marks ? kMark : "⠤⠤", kSeriesStyles[i % std::size(kSeriesStyles)], options.color);
      text += " " + one_line(series[i].name);
    }
  }
  return text;
}

// The axis line and the labels below it: each label under its tick, without overlap.
std::string x_axis(const Axis& axis, int columns, const ChartOptions& options) {
  std::vector<bool> is_tick(static_cast<size_t>(columns));
  std::string labels(static_cast<size_t>(columns), ' ');
  size_t free_from = 0;
  for (const double tick : axis.ticks) {
    const int column = to_dot(axis.share(tick), columns * kDotsPerColumn) / kDotsPerColumn;
    const std::string label = axis.label(tick);
    const int begin = std::clamp(column - static_cast<int>(label.size()) / 2, 0,
                                 std::max(0, columns - static_cast<int>(label.size())));
    if (static_cast<size_t>(begin) < free_from) continue;
    is_tick[static_cast<size_t>(column)] = true;
    labels.replace(static_cast<size_t>(begin), label.size(), label);
    free_from = static_cast<size_t>(begin) + label.size() + 2;
  }
  std::string line = "└";
  for (const bool tick : is_tick) line += tick ? "┬" : "─";
  labels.erase(labels.find_last_not_of(' ') + 1);
  return styled(line, Style::kDim, options.color) + "\n" + labels;
}

}  // namespace

std::string line_chart(std::span<const ChartSeries> series, const ChartOptions& options) {
  const int width = std::max(30, options.width), rows = std::max(3, options.height);
  const std::string head = header(series, options);
  const Extent extent = extent_of(series);
  const std::string missing =
      extent.left_out > 0 ? fmt::format("  {} points are not finite and are not drawn\n", extent.left_out) : "";
  if (extent.drawable == 0) return "  " + head + "\n  no points to draw\n" + missing;

  const Axis y = make_axis(extent.y_low, extent.y_high, std::max(2, rows / 3), true);
  int label_width = 0;
  for (const double tick : y.ticks) label_width = std::max(label_width, display_width(y.label(tick)));
  const std::string margin(2, ' ');
  const int columns = width - label_width - 4;  // margin, label, space, axis
  const Axis x = make_axis(extent.x_low, extent.x_high, columns / 12, false);

  Canvas canvas(columns, rows);
  for (const bool marks : {false, true}) {  // marks are drawn over lines
    for (size_t i = 0; i < series.size(); ++i) {
      if (series[i].marks == marks) (marks ? draw_marks : draw_line)(canvas, series[i], i, x, y);
    }
  }
  std::vector<std::string> tick_labels(static_cast<size_t>(rows));
  for (const double tick : y.ticks) {
    tick_labels[static_cast<size_t>(to_dot(1 - y.share(tick), canvas.dot_height()) / kDotsPerRow)] = y.label(tick);
  }

  std::string text = head.empty() ? "" : margin + head + "\n";
  for (int r = 0; r < rows; ++r) {
    const auto& label = tick_labels[static_cast<size_t>(r)];
    text += margin + pad_left(label, label_width) + " " +
            styled(label.empty() ? "│" : "┤", Style::kDim, options.color) + canvas.row(r, options.color) + "\n";
  }
  const std::string below(static_cast<size_t>(label_width + 3), ' ');
  const auto axis_lines = split_lines(x_axis(x, columns, options));
  text += below + axis_lines.at(0) + "\n" + below + " " + axis_lines.at(1) + "\n";
  if (!options.x_label.empty()) {
    const int centre = label_width + 4 + (columns + display_width(options.x_label)) / 2;
    text += pad_left(styled(one_line(options.x_label), Style::kDim, options.color), centre) + "\n";
  }
  return text + missing;
}

namespace {

/// `eighths` of columns as block characters.
std::string blocks(int64_t eighths) {
  static constexpr std::array<std::string_view, 8> kParts = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string text;
  for (int64_t i = 0; i < eighths / 8; ++i) text += "█";
  return text.append(kParts[static_cast<size_t>(eighths % 8)]);
}

}  // namespace

std::string bar_chart(std::span<const Bar> bars, int width, bool color) {
  int label_width = 0, count_width = 0;
  int64_t most = 1;
  std::vector<std::string> counts;
  for (const Bar& bar : bars) {
    counts.push_back(" " + with_commas(bar.count) + (bar.note.empty() ? "" : "  " + bar.note));
    label_width = std::max(label_width, display_width(bar.label));
    count_width = std::max(count_width, display_width(counts.back()));
    most = std::max(most, bar.count);
  }
  constexpr int kIndent = 2, kGap = 2;
  const int64_t room = std::max(10, width - kIndent - label_width - kGap - count_width);
  std::string text;
  for (size_t i = 0; i < bars.size(); ++i) {
    const auto exact = static_cast<double>(bars[i].count) / static_cast<double>(most) * static_cast<double>(8 * room);
    const int64_t eighths = bars[i].count == 0 ? 0 : std::max<int64_t>(1, static_cast<int64_t>(exact));
    text += std::string(kIndent, ' ') + pad_left(bars[i].label, label_width) + std::string(kGap, ' ') +
            styled(blocks(eighths), Style::kCyan, color) + counts[i] + "\n";
  }
  return text;
}

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

std::string cell(double value, int width, bool color) {
  if (std::isnan(value)) return pad_right("?", width);
  if (color)
    return fmt::format("\x1b[48;5;{}m{}\x1b[0m", level(kRamp, value), std::string(static_cast<size_t>(width), ' '));
  // A space between cells separates columns with equal shades.
  return width == 1 ? std::string(level(kShades, value)) : repeat(level(kShades, value), width - 1) + " ";
}

// The number of columns per cell, and the width of a cell.
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

// Column numbers, as many as fit with a space between them.
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
