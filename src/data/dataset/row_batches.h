// RowBatches: rows of a data set in batches of a few thousand; reads the next batch while the caller processes one.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "data/dataset/dataset_reader.h"

namespace hone {

/// Rows that are parsed and encoded together: enough for all threads, few enough to limit memory.
struct RowBatch {
  std::vector<DatasetRow> rows;
  std::vector<int32_t> files;  ///< index in RowBatches::files() for each row
  int64_t first_row = 0;       ///< in the data set, from 0
  int64_t bytes_read = 0;      ///< from its files, up to the end of these rows
  /// The error that stopped reading after these rows. Errors in these rows come first.
  std::exception_ptr error = nullptr;
};

/// The files of a data set, in the order of reading. Throws UserError for errors of files_of_dataset.
std::vector<std::string> data_files(const DatasetEntry& entry);

class RowBatches {
 public:
  /// Reads the rows of `entry`, which must outlive this, and skips the first `skip` ones. `count_tokens` as for
  /// DatasetReader. Throws UserError for errors of DatasetReader.
  explicit RowBatches(const DatasetEntry& entry, int64_t skip = 0, TokenCounter count_tokens = {});

  /// The next rows; empty at the end. Must not be called after the end or an error.
  RowBatch next();

  int64_t bytes_total() const { return reader_.bytes_total(); }
  /// After the last row: the reader, with its formats.
  const DatasetReader& reader() const { return reader_; }
  /// After the last row: the files that had rows, including skipped rows.
  const std::vector<std::string>& files() const { return files_; }

 private:
  RowBatch read();
  int32_t file_index(const std::string& file);

  DatasetReader reader_;
  std::vector<std::string> files_;
  std::map<std::string, int32_t, std::less<>> index_of_file_;
  int64_t rows_ = 0;  // read so far
  std::future<RowBatch> ahead_;
};

}  // namespace hone
