// What a grid shows: a table, and the same as CSV.
#pragma once

#include <optional>
#include <string>

#include "app/bench/grid/grid_file.h"
#include "app/bench/grid/grid_rows.h"

namespace hone {

/// A line for each scenario that has a row, after a header: status, settings, medians, memory in bytes as
/// grid.memory says, command. Fields are quoted as RFC 4180 says; an unknown one is empty.
std::string grid_csv(const GridFile& grid, const GridRows& rows);

/// A row for each scenario, with the settings in which the scenarios differ, and the reasons of those that were not
/// measured. `before`: rows to compare tokens per second with, or nullptr. `width`: see Table.
std::string grid_table(const GridFile& grid, const GridRows& rows, const GridRows* before, bool color, int width);

/// "12 measured, 2 do not fit, 1 refused, 3 not run"
std::string grid_summary(const GridFile& grid, const GridRows& rows);

/// What a result and its memory are called on one line: "24,994 tokens/s, 656 ms", or "refused: …".
std::string row_line(const Json& row);

/// Tokens per second as a share of `before`'s; nothing if one of the two was not measured.
std::optional<double> share_of(const Json& row, const Json* before);

}  // namespace hone
