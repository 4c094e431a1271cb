#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "report/humanise.h"
#include "report/terminal.h"

namespace hone {
namespace {

constexpr int kColumnGap = 2;
constexpr int kLeastCut = 12;  // minimum columns of a truncated cell

/// Total width with gaps between the shown columns.
int total_width(const std::vector<int>& widths) {
  int total = -kColumnGap;
  for (const int width : widths) total += width > 0 ? width + kColumnGap : 0;
  return total;
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

/// The width of each column, 0 if it is dropped; the sum with gaps is at most `most` if possible.
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
      if (!text.empty()) text += std::string(kColumnGap, ' ');
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

namespace {

std::string trainable_cell(int64_t trainable, int64_t all) {
  if (trainable == 0) return "-";
  return trainable == all ? "all" : with_commas(trainable);
}

std::string share_cell(uint64_t part, uint64_t whole) {
  if (part == 0 || whole == 0) return "0%";
  const double share = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return share < 1 ? "<1%" : fmt::format("{:.0f}%", share);
}

double percent(double part, double whole) { return whole > 0 ? 100.0 * part / whole : 0.0; }

}  // namespace

std::string parameter_table(std::span<const ParameterGroupRow> rows, bool color) {
  Table table({{"group"}, {"tensors", Align::kRight}, {"parameters", Align::kRight}, {"trainable", Align::kRight}});
  ParameterGroupRow total{.group = "total"};
  for (const auto& row : rows) {
    table.add_row({row.group, with_commas(row.tensors), with_commas(row.parameters),
                   trainable_cell(row.trainable_parameters, row.parameters)});
    total.tensors += row.tensors;
    total.parameters += row.parameters;
    total.trainable_parameters += row.trainable_parameters;
  }
  table.add_rule().add_row({total.group, with_commas(total.tensors), with_commas(total.parameters),
                            with_commas(total.trainable_parameters)});
  return table.to_string(color);
}

std::string trainable_summary(int64_t trainable, int64_t all) {
  return fmt::format("trainable params: {} || all params: {} || trainable%: {:.4f}", with_commas(trainable),
                     with_commas(all), percent(static_cast<double>(trainable), static_cast<double>(all)));
}

std::string memory_table(std::span<const MemoryRow> rows, uint64_t available, bool color) {
  Table table({{"memory"}, {"size", Align::kRight}, {"share", Align::kRight}, {""}});
  uint64_t total = 0;
  for (const auto& row : rows) total += row.bytes;
  for (const auto& row : rows) {
    table.add_row({row.what, human_bytes(row.bytes), share_cell(row.bytes, total), row.note});
  }
  std::string fit;
  if (available > 0) {
    fit = fmt::format("of {} ({:.0f}%)", human_bytes(available),
                      percent(static_cast<double>(total), static_cast<double>(available)));
    if (total > available) fit += ": does not fit";
  }
  table.add_rule().add_row({"total", human_bytes(total), "", fit});
  return table.to_string(color);
}

std::string memory_line(std::span<const MemoryRow> rows, uint64_t available) {
  uint64_t total = 0;
  std::string parts;
  for (const auto& row : rows) {
    total += row.bytes;
    if (row.bytes == 0) continue;
    parts += fmt::format("{} {} {}", parts.empty() ? ":" : ",", row.what, human_bytes(row.bytes));
  }
  const std::string of = available > 0 ? fmt::format(" of {}", human_bytes(available)) : std::string();
  return fmt::format("memory {}{}{}", human_bytes(total), of, parts);
}

}  // namespace hone
