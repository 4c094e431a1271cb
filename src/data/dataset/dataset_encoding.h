// Encodes one data set as blocks of samples: reads, formats and encodes in parallel, or loads them from a cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "core/text/json_value.h"
#include "data/dataset/block_builder.h"
#include "data/dataset/dataset_reader.h"
#include "data/dataset/dataset_report.h"
#include "data/dataset/token_cache.h"
#include "data/formats/chat_encoder.h"
#include "data/formats/sample_encoder.h"
#include "data/formats/token_block.h"

namespace hone {

// The options of reading and encoding data.

struct DataOptions {
  std::vector<DatasetEntry> datasets = {};
  std::vector<DatasetEntry> eval_datasets = {};
  /// Size of the validation split of `datasets`: a fraction below 1, or a number of rows. Only without eval_datasets.
  double val_split = 0;
  int64_t max_length = 4096;
  Overlength overlength = Overlength::kDrop;
  ChatEncoderOptions chat = {};  ///< the chat template and the loss mask
  uint64_t data_seed = 42;       ///< seed of the validation split
  int64_t vocab_size = 0;        ///< number of rows of the model's embedding
  /// Warns about data that check_dataset rejects, and uses it.
  bool tolerant = false;
  /// The cache folder of tokenized data sets; empty: no cache, data stays in memory.
  std::string tokenized_cache = {};
  /// Special tokens of the configuration (text/tokenizer_config.h).
  JsonObject token_choice = {};
  /// The files of the tokenizer: they are part of a cache's key.
  std::vector<std::string> tokenizer_files = {};
  /// Approximate number of tokens of a block (data/formats/token_block.h): limits memory use while a cache is built.
  int64_t block_tokens = int64_t{1} << 24;
};

/// The progress of reading.
struct DataProgress {
  std::string_view dataset;
  int64_t rows = 0, tokens = 0;             ///< read from this data set so far
  int64_t bytes_read = 0, bytes_total = 0;  ///< in its files
  bool waiting = false;                     ///< another process builds the cache of this data set
};

using DataProgressCallback = std::function<void(const DataProgress&)>;

struct EncodedDataset {
  std::vector<TokenBlock> blocks;
  DatasetReport report;
  std::string cache_line;  ///< how tokenized_cache was used; empty without a cache
};

/// The state that all data sets of a run share.
struct EncodingContext {
  const DataOptions& options;
  const SampleEncoder& encoder;
  ThreadPool& pool;
  const DataProgressCallback& progress;
  TokenCounter count_tokens = {};   ///< empty: there is no tokenizer
  ContentHashes* hashes = nullptr;  ///< the cache's hashes; null: no cache
};

/// Returns blocks and a report of the rows. The result depends neither on the number of threads nor on the cache.
/// Throws UserError for errors of JsonlReader, parse_row, format_row and SampleEncoder (the first in the order of
/// rows), and for a cache that cannot be written.
EncodedDataset encode_dataset(const DatasetEntry& entry, const std::string& name, const EncodingContext& context);

}  // namespace hone
