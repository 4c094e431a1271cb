// Text tables with columns aligned on the terminal, and the tables that a run prints before its first step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hone {

enum class Align { kLeft, kRight };

/// Rows below a header and a rule:
///   group      tensors  parameters
///   ──────────────────────────────
///   attention       16   1,048,576
class Table {
 public:
  struct Column {
    std::string name;
    Align align = Align::kLeft;
    int drop = 0;  ///< if the table is too wide, columns with the largest number are dropped first; 0: never
  };

  explicit Table(std::vector<Column> columns);

  /// Adds cells in the order of the columns; missing cells at the end are empty. Asserts that there are no more cells
  /// than columns.
  Table& add_row(std::vector<std::string> cells);

  /// Adds a rule across the table, for example before a total.
  Table& add_rule();

  /// Lines that each end in '\n', without trailing spaces. `indent`: spaces before each line. If the table is wider
  /// than `width` columns (0: no limit), drops columns, then truncates the widest left-aligned one.
  std::string to_string(bool color = false, int indent = 2, int width = 0) const;

 private:
  std::vector<int> widths() const;
  std::vector<int> fitting_widths(int most) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

struct ParameterGroupRow {
  std::string group = {};
  int64_t tensors = 0;
  int64_t parameters = 0;            ///< all elements of the group
  int64_t trainable_parameters = 0;  ///< those that the optimizer changes
};

/// group × tensors × parameters × trainable, with a total.
std::string parameter_table(std::span<const ParameterGroupRow> rows, bool color);

/// "trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622" (PEFT's line).
std::string trainable_summary(int64_t trainable, int64_t all);

struct MemoryRow {
  std::string what = {};  ///< weights, gradients, optimizer, activations, …
  uint64_t bytes = 0;
  std::string note = {};  ///< e.g. "float32 moments"
};

/// what × bytes × share × note, with the total; against `available` bytes (0: unknown) as "9.8 GB of 16.0 GB".
std::string memory_table(std::span<const MemoryRow> rows, uint64_t available, bool color);

/// The same on one line: "memory 153 MB of 24.7 GB: weights 7.9 MB, gradients 7.9 MB". Omits rows of 0 bytes.
std::string memory_line(std::span<const MemoryRow> rows, uint64_t available);

}  // namespace hone
