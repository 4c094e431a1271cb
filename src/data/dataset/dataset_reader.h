// Reads the rows of a data set from files of all kinds, with the format of each row.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/formats/column_mapping.h"
#include "data/formats/prompt_template.h"
#include "data/formats/sample_format.h"
#include "data/readers/code/code_repository.h"
#include "data/readers/dataset_files.h"
#include "data/readers/raw_row.h"
#include "data/readers/split_slice.h"

namespace hone {

/// A data set of the configuration.
struct DatasetEntry {
  std::string path;  ///< a file, a folder of files, or a data set of the Hugging Face hub
  SampleFormat format = SampleFormat::kAuto;
  std::optional<int64_t> samples = {};  ///< read only this many rows
  /// For logs and metrics; empty: from the path. Of a data set of the hub: its configuration.
  std::string name = {};
  /// The part of a folder, or of a .json file with several lists, to read; may have a slice of its rows
  /// (data/readers/split_slice.h).
  std::string split = {};
  ColumnMapping mapping = {};
  std::optional<char> delimiter = {};                  ///< separates the fields of CSV files; unset: detected
  std::optional<PromptTemplate> prompt_template = {};  ///< rows of alpaca become text instead of a chat
  bool drop_system_message = false;                    ///< that of a chat is left out
  std::optional<CodeOptions> code = {};                ///< set: the path is a repository of source code
};

/// A row and its format.
struct DatasetRow {
  RawRow raw;
  SampleFormat format = SampleFormat::kAuto;  ///< never kAuto after reading

  std::string where() const { return raw.where(); }
};

/// Parses a row and reads its columns; `unread` as in format_row. Thread-safe. Throws UserError for errors of
/// parse_row, format_row and refuse_contrary_columns.
FormattedRow read_row(const DatasetRow& row, const ColumnMapping& mapping, std::vector<std::string>* unread = nullptr);

/// Opens one file of rows. Throws UserError if it is not readable.
std::unique_ptr<RowReader> open_rows(const std::string& file, const DatasetFiles& files, const ColumnMapping& mapping,
                                     std::optional<char> delimiter = {});

/// Reads the files of a data set in order. The format of each file is detected from its first rows, unless the entry
/// sets it; plain text has the format text.
class DatasetReader {
 public:
  /// `entry` must outlive this. `count_tokens` measures samples of source code. A slice in percent, or from the end,
  /// reads the files once to count their rows. Throws UserError for errors of files_of_dataset, and for a slice without
  /// rows.
  explicit DatasetReader(const DatasetEntry& entry, TokenCounter count_tokens = {});

  /// Reads the next row of the split's slice; returns false at the end (or after entry.samples rows). Throws UserError
  /// for errors of the readers and of detect_format, and for a mapped column that none of a file's first rows has, if
  /// the file has fixed columns or a column with a similar name.
  bool next(DatasetRow& row);

  /// Call after read_row has read all rows: throws UserError if the mapping has a column that none of them had.
  void finish() const;

  int64_t bytes_read() const { return code_ ? code_->bytes_read() : bytes_before_ + (open_ ? open_->bytes_read() : 0); }
  int64_t bytes_total() const { return bytes_total_; }

  /// The format of all files read so far, or kAuto if they differ.
  SampleFormat format() const;
  /// The detected formats with the reasons, and the files that were not read; may be empty.
  std::string decision() const;

 private:
  /// Files with the same format and reason.
  struct Decision {
    SampleFormat format;
    std::string reason;
    int64_t files;
  };

  bool next_code(RawRow& raw);
  /// Sets slice_ from entry.split.
  void choose_rows();
  bool next_in_files(DatasetRow& row);
  bool open_next();
  void peek_rows();
  void decide(SampleFormat format, const std::string& reason);
  void check_columns(const std::vector<LocatedRow>& rows) const;

  const DatasetEntry& entry_;
  std::unique_ptr<CodeReader> code_;  // set: replaces files_
  DatasetFiles files_;
  size_t next_file_ = 0;
  std::unique_ptr<RowReader> open_;
  std::deque<RawRow> peeked_;
  SampleFormat format_ = SampleFormat::kAuto;  // the format of the open file
  std::vector<Decision> decisions_;
  std::vector<int64_t> sizes_;  // bytes of each of files_
  RowRange slice_;              // the part of all rows of files_ that is read
  int64_t most_ = 0;            // rows that next() returns at most
  int64_t skipped_ = 0;         // rows before the slice that were read
  int64_t rows_ = 0, bytes_before_ = 0, bytes_total_ = 0;
};

}  // namespace hone
