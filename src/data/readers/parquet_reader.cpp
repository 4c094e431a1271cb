#include "data/readers/parquet_reader.h"

#include <fmt/format.h>

#include <vector>

#include "core/base/error.h"
#include "core/files/file_bytes.h"
#include "data/readers/parquet/arrow_schema.h"
#include "data/readers/parquet/row_writer.h"

namespace hone {

namespace {

using parquet::ColumnReader;
using parquet::ParquetFault;

/// A small file takes at most as much for its pages; others keep pages compressed to an eighth at most.
uint64_t most_page_bytes(uint64_t file_bytes) { return (uint64_t{1} << 30) + 8 * file_bytes; }

class ParquetReader : public RowReader {
 public:
  explicit ParquetReader(const std::string& path)
      : path_(path), file_(path), memory_(most_page_bytes(file_.size())), packed_(memory_) {
    try {
      footer_ = parquet::read_footer(file_);
      plan_ = parquet::make_row_plan(footer_);
      parquet::restore_durations(footer_.arrow_schema, plan_);
      needed_ = parquet::needs_reading(plan_);
      check_columns();
    } catch (const ParquetFault& reason) {
      throw UserError(fmt::format("the file cannot be read as Parquet: {}", reason.what()), path_,
                      reason.fix().empty() ? "it may be truncated, or not be a Parquet file" : reason.fix());
    }
  }

  bool next(RawRow& row) override {
    row = {};
    row.file = path_;
    row.syntax = RowSyntax::kParquet;
    row.line = rows_ + 1;
    try {
      while (left_ == 0) {
        if (!next_group()) return false;
      }
      parquet::RowWriter(plan_, columns_, kMaxRowBytes).write(row.text);
      if (--left_ == 0) finish_group();
    } catch (const ParquetFault& reason) {
      throw UserError(fmt::format("the row cannot be read: {}", reason.what()), row.where(), reason.fix());
    }
    ++rows_;
    return true;
  }

  /// The bytes of the file, scaled by the fraction of rows read.
  int64_t bytes_read() const override {
    if (footer_.rows == 0) return 0;
    const auto size = static_cast<double>(file_.size());
    return static_cast<int64_t>(size * static_cast<double>(rows_) / static_cast<double>(footer_.rows));
  }

 private:
  void check_columns() const {
    if (plan_.leaves.empty() && footer_.rows > 0) parquet::fault("it has rows, but no columns");
    for (const parquet::RowGroup& group : footer_.row_groups) {
      for (size_t i = 0; i < plan_.leaves.size(); ++i) {
        if (needed_[i]) parquet::check_chunk(plan_.leaves[i], group.columns[i]);
      }
    }
  }

  /// Opens the columns of the next row group; false at the end.
  bool next_group() {
    columns_.clear();
    if (group_ == footer_.row_groups.size()) return false;
    const parquet::RowGroup& group = footer_.row_groups[group_++];
    if (group.rows > 0) {
      for (size_t i = 0; i < plan_.leaves.size(); ++i) {
        columns_.push_back(needed_[i] ? std::make_unique<ColumnReader>(file_, footer_.data_end, plan_.leaves[i],
                                                                       group.columns[i], memory_, packed_)
                                      : nullptr);
      }
    }
    left_ = group.rows;
    return true;
  }

  void finish_group() {
    for (const auto& column : columns_) {
      if (column) column->finish();
    }
  }

  std::string path_;
  FileBytes file_;
  parquet::PageMemory memory_;
  parquet::PageBuffer packed_;
  parquet::Footer footer_;
  parquet::RowPlan plan_;
  std::vector<bool> needed_;
  std::vector<std::unique_ptr<ColumnReader>> columns_;  // the columns of the row group; must go before memory_
  size_t group_ = 0;                                    // the next one
  int64_t left_ = 0;                                    // rows of this one
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<RowReader> open_parquet(const std::string& file) { return std::make_unique<ParquetReader>(file); }

}  // namespace hone
