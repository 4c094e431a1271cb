// Assembles rows from columns: the JSON of one row after another. One core writes 350,000 to 770,000 rows of chats a
// second, in a tenth of the time that parsing them takes (bench/results/parquet-2026-11-28.txt).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/readers/parquet/column_reader.h"
#include "data/readers/parquet/row_plan.h"

namespace hone::parquet {

/// Writes the rows of a row group. A null member of an object is left out, since every object of a column has the
/// members of all others; null columns, elements and values of maps are written.
class RowWriter {
 public:
  /// `columns`: for each leaf of the plan its column, or null for one that need not be read (needs_reading). `most`:
  /// bytes of a row. All must outlive this.
  RowWriter(const RowPlan& plan, const std::vector<std::unique_ptr<ColumnReader>>& columns, size_t most)
      : plan_(plan), columns_(columns), most_(most) {}

  /// Appends the next row to `out`, which is empty. Throws ParquetFault for damaged pages, columns that do not fit
  /// together, bytes that are not text, and a row of more than `most` bytes.
  void write(std::string& out);

 private:
  /// Where the name and value of a member are in the row.
  struct Span {
    size_t begin, value, end;
  };

  // Append a value; false if it is null. `repetition`: that of its first entry.
  bool write_value(const RowNode& node, int repetition, std::string& out);
  bool write_leaf(const RowNode& node, int repetition, std::string& out);
  bool write_object(const RowNode& node, int repetition, bool keep_nulls, std::string& out);
  bool write_list(const RowNode& node, int repetition, std::string& out);
  bool write_map(const RowNode& node, int repetition, std::string& out);
  void write_key(const RowNode& node, int repetition, std::string& out);

  /// Takes the entries of a value that is null, or of an empty list: one of each column, with the same level.
  void take_absent(const RowNode& node, int repetition, int definition);
  void check_size(const std::string& out) const;
  ColumnReader& column(const RowNode& node) const { return *columns_[node.first_leaf]; }

  const RowPlan& plan_;
  const std::vector<std::unique_ptr<ColumnReader>>& columns_;
  size_t most_;
};

/// For each leaf whether RowWriter reads it. A column of bytes that are not text is null in every row, so its pages,
/// often images, stay in the file; one column is read in any case.
std::vector<bool> needs_reading(const RowPlan& plan);

}  // namespace hone::parquet
