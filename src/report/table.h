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
    int drop = 0;  ///< where the table is too wide, columns with the largest number go first; 0: this one stays
  };

  explicit Table(std::vector<Column> columns);

  /// Cells in the order of the columns; missing cells at the end are empty. More cells than columns: assertion.
  Table& add_row(std::vector<std::string> cells);

  /// A rule across the table, as before a total.
  Table& add_rule();

  /// Lines that each end in '\n', without trailing spaces. `indent`: spaces before each line. In more than `width`
  /// columns (0: any number fits) some are dropped, then the widest left-aligned one is cut.
  std::string to_string(bool color = false, int indent = 2, int width = 0) const;

 private:
  std::vector<int> widths() const;
  std::vector<int> fitting_widths(int most) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

}  // namespace hone
