#include "report/startup_tables.h"

#include <fmt/format.h>

#include "report/humanise.h"
#include "report/table.h"
#include "report/terminal.h"

namespace hone {
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
    table.add_row({row.what, human_bytes(static_cast<double>(row.bytes)), share_cell(row.bytes, total), row.note});
  }
  std::string fit;
  if (available > 0) {
    fit = fmt::format("of {} ({:.0f}%)", human_bytes(static_cast<double>(available)),
                      percent(static_cast<double>(total), static_cast<double>(available)));
    if (total > available) fit += ": does not fit";
  }
  table.add_rule().add_row({"total", human_bytes(static_cast<double>(total)), "", fit});
  return table.to_string(color);
}

std::string memory_line(std::span<const MemoryRow> rows, uint64_t available) {
  uint64_t total = 0;
  std::string parts;
  for (const auto& row : rows) {
    total += row.bytes;
    if (row.bytes == 0) continue;
    parts += fmt::format("{} {} {}", parts.empty() ? ":" : ",", row.what, human_bytes(static_cast<double>(row.bytes)));
  }
  const std::string of =
      available > 0 ? fmt::format(" of {}", human_bytes(static_cast<double>(available))) : std::string();
  return fmt::format("memory {}{}{}", human_bytes(static_cast<double>(total)), of, parts);
}

}  // namespace hone
