// Builds sample stores from data sets: reads, encodes in parallel, checks, and splits off the validation samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset/dataset_encoding.h"
#include "data/packing/sample_store.h"
#include "report/text_mask.h"

namespace hone {

/// The samples of several data sets, in the order of their rows.
struct BuiltStore {
  SampleStore store;
  std::vector<std::string> names;  ///< by SampleView::dataset
  std::vector<DatasetReport> reports;
  std::vector<std::string> warnings;
  std::vector<std::string> cache_lines;  ///< how tokenized_cache was used
};

/// Reads `entries` (at least one). The result does not depend on the number of threads. `tokenizer` may be null if all
/// data is tokenized. Throws UserError for errors of encode_dataset and check_dataset, and for two data sets with the
/// same name.
BuiltStore build_store(const std::vector<DatasetEntry>& entries, const DataOptions& options, const Tokenizer* tokenizer,
                       ThreadPool& pool, const DataProgressCallback& progress = {});

/// The data of a training run.
struct TrainingData {
  SampleStore train, eval;  ///< eval is empty without eval_datasets and val_split
  std::vector<std::string> train_names, eval_names;
  std::vector<DatasetReport> train_reports, eval_reports;  ///< a validation split has no eval reports
  std::vector<std::string> warnings, cache_lines;
};

/// Builds both stores. The validation split is drawn with data_seed from the rows of all data sets; all parts of a
/// split row stay together. Throws UserError if there is no data set, if the validation split leaves no training data,
/// and for errors of build_store.
TrainingData build_training_data(const DataOptions& options, const Tokenizer* tokenizer, ThreadPool& pool,
                                 const DataProgressCallback& progress = {});

/// Sample `index` of the store, special tokens included: a piece for each stretch of tokens that are, or are not,
/// targets of the loss. A stretch of more than `max_span` tokens (0: no limit) is three pieces, its middle not shown,
/// nor decoded. Without a tokenizer the text is that of the ids.
std::vector<MaskPiece> preview_sample(const SampleStore& store, int64_t index, const Tokenizer* tokenizer,
                                      size_t max_span = 0);

}  // namespace hone
