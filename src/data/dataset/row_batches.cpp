#include "data/dataset/row_batches.h"

#include <utility>

namespace hone {

namespace {

constexpr size_t kBatchRows = 2048;
constexpr size_t kBatchBytes = size_t{32} << 20;

}  // namespace

std::vector<std::string> data_files(const DatasetEntry& entry) {
  return files_of_dataset(entry.path, entry.split).files;
}

RowBatches::RowBatches(const DatasetEntry& entry, int64_t skip, TokenCounter count_tokens)
    : reader_(entry, std::move(count_tokens)) {
  for (DatasetRow row; rows_ < skip && reader_.next(row); ++rows_) file_index(row.raw.file);
  ahead_ = std::async(std::launch::async, [this] { return read(); });
}

int32_t RowBatches::file_index(const std::string& file) {
  if (!files_.empty() && files_.back() == file) return static_cast<int32_t>(files_.size()) - 1;
  const auto [found, is_new] = index_of_file_.try_emplace(file, static_cast<int32_t>(files_.size()));
  if (is_new) files_.push_back(file);
  return found->second;
}

RowBatch RowBatches::next() {
  RowBatch batch = ahead_.get();
  if (!batch.rows.empty() && !batch.error) ahead_ = std::async(std::launch::async, [this] { return read(); });
  return batch;
}

RowBatch RowBatches::read() {
  RowBatch batch;
  batch.first_row = rows_;
  try {
    DatasetRow row;
    for (size_t bytes = 0; batch.rows.size() < kBatchRows && bytes < kBatchBytes && reader_.next(row); ++rows_) {
      bytes += row.raw.text.size();
      batch.files.push_back(file_index(row.raw.file));
      batch.rows.push_back(std::move(row));
    }
  } catch (...) {
    batch.error = std::current_exception();
  }
  batch.bytes_read = reader_.bytes_read();
  return batch;
}

}  // namespace hone
