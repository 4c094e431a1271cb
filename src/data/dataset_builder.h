// Data sets to sample stores: reads, encodes in parallel, checks, and splits off the validation samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset_encoding.h"
#include "data/sample_store.h"

namespace hone {

/// Samples of several data sets in the order of their rows.
struct BuiltStore {
  SampleStore store;
  std::vector<std::string> names;  ///< by SampleView::dataset
  std::vector<DatasetReport> reports;
  std::vector<std::string> warnings;
  std::vector<std::string> cache_lines;  ///< what became of tokenized_cache
};

/// Reads `entries` (at least one). The result does not depend on the number of threads. `tokenizer` may be null if all
/// data is tokenized. Throws UserError: what encode_dataset and check_dataset refuse, two data sets of one name.
BuiltStore build_store(const std::vector<DatasetEntry>& entries, const DataOptions& options, const Tokenizer* tokenizer,
                       ThreadPool& pool, const DataProgressCallback& progress = {});

/// Everything a training run reads.
struct TrainingData {
  SampleStore train, eval;  ///< eval is empty without eval_datasets and val_split
  std::vector<std::string> train_names, eval_names;
  std::vector<DatasetReport> train_reports, eval_reports;  ///< no eval reports of a validation split
  std::vector<std::string> warnings, cache_lines;
};

/// Builds both stores. The validation split is drawn from all rows of all data sets by data_seed; all parts of a split
/// row stay together. Throws UserError: no data set, a validation split that leaves nothing to train on, whatever
/// build_store refuses.
TrainingData build_training_data(const DataOptions& options, const Tokenizer* tokenizer, ThreadPool& pool,
                                 const DataProgressCallback& progress = {});

/// One token of a sample as it is trained on.
struct PreviewToken {
  std::string text;         ///< what it adds to the decoded text; the id and a space if there is no tokenizer
  bool supervised = false;  ///< it is a target of the loss
};

/// Sample `index` of the store, special tokens included.
std::vector<PreviewToken> preview_sample(const SampleStore& store, int64_t index, const Tokenizer* tokenizer);

}  // namespace hone
