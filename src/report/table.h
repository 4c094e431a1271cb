// A text table whose columns are aligned on the terminal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hone {

enum class Align { kLeft, kRight };

/// Rows under a header and a rule:
///   group      tensors  parameters
///   ──────────────────────────────
///   attention       16   1,048,576
class Table {
 public:
  struct Column {
    std::string name;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns);

  /// Cells in the order of the columns; missing cells at the end are empty. More cells than columns: assertion.
  Table& add_row(std::vector<std::string> cells);

  /// A rule across the table, as before a total.
  Table& add_rule();

  /// Lines that each end in '\n', without trailing spaces. `indent`: spaces before each line.
  std::string to_string(bool color = false, int indent = 2) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace hone
