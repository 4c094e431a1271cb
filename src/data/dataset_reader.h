// The rows of a data set, from files of all kinds, each with the way it is to be read.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/code/code_repository.h"
#include "data/column_mapping.h"
#include "data/dataset_files.h"
#include "data/prompt_template.h"
#include "data/raw_row.h"
#include "data/sample_format.h"

namespace hone {

/// One data set.
struct DatasetEntry {
  std::string path;  ///< a file, or a folder of files
  SampleFormat format = SampleFormat::kAuto;
  std::optional<int64_t> samples = {};  ///< only the first so many rows
  std::string name = {};                ///< in logs and metrics; empty: from the path
  std::string split = {};               ///< of a folder, or of a .json file with several lists
  ColumnMapping mapping = {};
  std::optional<char> delimiter = {};                  ///< of CSV files; unset: recognised
  std::optional<PromptTemplate> prompt_template = {};  ///< rows of alpaca are written as text, not as a chat
  std::optional<CodeOptions> code = {};                ///< the path is a repository of source code
};

/// A row and how it is read.
struct DatasetRow {
  RawRow raw;
  SampleFormat format = SampleFormat::kAuto;  ///< never kAuto of a row that was read

  std::string where() const { return raw.where(); }
};

/// Parses a row and reads its columns; `unread` as format_row sets it. May be called from many threads. Throws
/// UserError: what parse_row, format_row and refuse_contrary_columns refuse.
FormattedRow read_row(const DatasetRow& row, const ColumnMapping& mapping, std::vector<std::string>* unread = nullptr);

/// Opens one file of rows. Throws UserError: not readable, Parquet in a program that was built without it.
std::unique_ptr<RowReader> open_rows(const std::string& file, const DatasetFiles& files, const ColumnMapping& mapping,
                                     std::optional<char> delimiter = {});

/// Reads the files of a data set one after another. The format of each file is detected from its first rows, unless the
/// entry states it; plain text is of the format text.
class DatasetReader {
 public:
  /// `entry` outlives this. Throws UserError: what files_of_dataset refuses.
  /// Samples of source code are measured by `count_tokens`.
  explicit DatasetReader(const DatasetEntry& entry, TokenCounter count_tokens = {});

  /// The next row, or false at the end (or behind entry.samples rows). Throws UserError: what the readers and
  /// detect_format refuse; a column that the mapping names and none of a file's first rows has, if the file fixes its
  /// columns or another column has nearly that name.
  bool next(DatasetRow& row);

  /// After all rows have been read by read_row: throws UserError if the mapping names a column that none of them had.
  void finish() const;

  int64_t bytes_read() const { return code_ ? code_->bytes_read() : bytes_before_ + (open_ ? open_->bytes_read() : 0); }
  int64_t bytes_total() const { return bytes_total_; }

  /// The format of all files read so far, or kAuto if they differ.
  SampleFormat format() const;
  /// How the formats were found and what was not read; empty if there is nothing to say.
  std::string decision() const;

 private:
  /// Files that are read alike.
  struct Decision {
    SampleFormat format;
    std::string reason;
    int64_t files;
  };

  bool next_code(RawRow& raw);
  bool open_next();
  void peek_rows();
  void decide(SampleFormat format, const std::string& reason);
  void check_columns(const std::vector<LocatedRow>& rows) const;

  const DatasetEntry& entry_;
  std::unique_ptr<CodeReader> code_;  // in the place of files
  DatasetFiles files_;
  size_t next_file_ = 0;
  std::unique_ptr<RowReader> open_;
  std::deque<RawRow> peeked_;
  SampleFormat format_ = SampleFormat::kAuto;  // of the open file
  std::vector<Decision> decisions_;
  std::vector<int64_t> sizes_;  // of files_, in bytes
  int64_t rows_ = 0, bytes_before_ = 0, bytes_total_ = 0;
};

}  // namespace hone
