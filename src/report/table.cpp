#include "report/table.h"

#include <algorithm>

#include "core/error.h"
#include "report/terminal.h"

namespace hone {
namespace {

constexpr int kGap = 2;

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

std::string Table::to_string(bool color, int indent) const {
  std::vector<int> widths;
  int total = kGap * (static_cast<int>(columns_.size()) - 1);
  for (size_t i = 0; i < columns_.size(); ++i) {
    int width = display_width(columns_[i].name);
    for (const auto& row : rows_) width = std::max(width, row.empty() ? 0 : display_width(row[i]));
    widths.push_back(width);
    total += width;
  }
  const std::string margin(static_cast<size_t>(indent), ' ');
  const std::string rule = margin + styled(repeat("─", total), Style::kDim, color) + "\n";
  const auto line = [&](const auto& cell_of, Style style) {
    std::string text;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) text += std::string(kGap, ' ');
      text += columns_[i].align == Align::kLeft ? pad_right(cell_of(i), widths[i]) : pad_left(cell_of(i), widths[i]);
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
