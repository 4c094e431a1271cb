#include "report/table.h"

#include <algorithm>

#include "core/error.h"
#include "report/terminal.h"

namespace hone {
namespace {

constexpr int kGap = 2;
constexpr int kLeastCut = 12;  // columns of a cell that is cut

/// With gaps between the columns that are shown.
int total_width(const std::vector<int>& widths) {
  int total = -kGap;
  for (const int width : widths) total += width > 0 ? width + kGap : 0;
  return total;
}

std::string repeat(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) { HONE_ASSERT(!columns_.empty()); }

Table& Table::add_row(std::vector<std::string> cells) {
  HONE_ASSERT(!cells.empty() && cells.size() <= columns_.size());
  for (auto& cell : cells) cell = one_line(cell);
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
  return *this;
}

Table& Table::add_rule() {
  rows_.emplace_back();
  return *this;
}

std::vector<int> Table::widths() const {
  std::vector<int> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    int width = display_width(columns_[i].name);
    for (const auto& row : rows_) width = std::max(width, row.empty() ? 0 : display_width(row[i]));
    widths.push_back(width);
  }
  return widths;
}

/// Of each column, 0 where it is dropped; the sum with gaps is at most `most` if that can be had.
std::vector<int> Table::fitting_widths(int most) const {
  std::vector<int> all = widths();
  while (total_width(all) > most) {
    size_t dropped = columns_.size(), widest = columns_.size();
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (all[i] == 0) continue;
      const int drop = columns_[i].drop;
      if (drop > 0 && (dropped == columns_.size() || drop > columns_[dropped].drop)) dropped = i;
      const bool cuts = columns_[i].align == Align::kLeft && all[i] > kLeastCut;
      if (cuts && (widest == columns_.size() || all[i] > all[widest])) widest = i;
    }
    if (dropped < columns_.size()) {
      all[dropped] = 0;
    } else if (widest < columns_.size()) {
      all[widest] = std::max(kLeastCut, all[widest] - (total_width(all) - most));
    } else {
      break;
    }
  }
  return all;
}

std::string Table::to_string(bool color, int indent, int width) const {
  const std::vector<int> shown = width > 0 ? fitting_widths(width - indent) : widths();
  const std::string margin(static_cast<size_t>(indent), ' ');
  const std::string rule = margin + styled(repeat("─", total_width(shown)), Style::kDim, color) + "\n";
  const auto line = [&](const auto& cell_of, Style style) {
    std::string text;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (shown[i] == 0) continue;
      if (!text.empty()) text += std::string(kGap, ' ');
      const std::string cell = fit_width(cell_of(i), shown[i]);
      text += columns_[i].align == Align::kLeft ? pad_right(cell, shown[i]) : pad_left(cell, shown[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return margin + styled(text, style, color) + "\n";
  };
  std::string result = line([&](size_t i) { return columns_[i].name; }, Style::kBold) + rule;
  for (const auto& row : rows_) {
    result += row.empty() ? rule : line([&](size_t i) { return row[i]; }, Style::kPlain);
  }
  return result;
}

}  // namespace hone
