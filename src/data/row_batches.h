// RowBatches: rows of a data set a few thousand at a time, the next ones read while these are worked on.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "data/dataset_reader.h"

namespace hone {

/// Rows that are parsed and encoded together: enough for all threads, few enough to bound memory.
struct RowBatch {
  std::vector<DatasetRow> rows;
  std::vector<int32_t> files;  ///< of each row, in RowBatches::files()
  int64_t first_row = 0;       ///< of the data set, from 0
  int64_t bytes_read = 0;      ///< of its files, up to the end of these rows
  /// What reading stopped at behind these rows: of several bad rows the first is the one to name.
  std::exception_ptr error = nullptr;
};

/// The files of a data set, in the order in which their rows come. Throws UserError: what files_of_dataset refuses.
std::vector<std::string> data_files(const DatasetEntry& entry);

class RowBatches {
 public:
  /// The rows of `entry`, which outlives this, without the first `skip` ones (which are read). `count_tokens`: as
  /// DatasetReader takes it. Throws UserError: what DatasetReader refuses.
  explicit RowBatches(const DatasetEntry& entry, int64_t skip = 0, TokenCounter count_tokens = {});

  /// The next rows; none at the end. After the end, or an error, it is not called again.
  RowBatch next();

  int64_t bytes_total() const { return reader_.bytes_total(); }
  /// Behind the last row: how the rows were read.
  const DatasetReader& reader() const { return reader_; }
  /// Behind the last row: the files that had rows, those of rows that were skipped included.
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
