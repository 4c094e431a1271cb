// One data set to blocks of samples: reads, formats and encodes in parallel, or takes them from a cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/thread_pool.h"
#include "data/data_options.h"
#include "data/dataset_report.h"
#include "data/sample_encoder.h"
#include "data/token_block.h"
#include "data/token_cache.h"

namespace hone {

/// How far reading is.
struct DataProgress {
  std::string_view dataset;
  int64_t rows = 0, tokens = 0;             ///< of this data set so far
  int64_t bytes_read = 0, bytes_total = 0;  ///< of its files
  bool waiting = false;                     ///< another process builds the cache of this data set
};

using DataProgressCallback = std::function<void(const DataProgress&)>;

struct EncodedDataset {
  std::vector<TokenBlock> blocks;
  DatasetReport report;
  std::string cache_line;  ///< what became of tokenized_cache; empty: there is none
};

/// What a run shares between its data sets.
struct EncodingContext {
  const DataOptions& options;
  const SampleEncoder& encoder;
  ThreadPool& pool;
  const DataProgressCallback& progress;
  TokenCounter count_tokens = {};   ///< empty: there is no tokenizer
  ContentHashes* hashes = nullptr;  ///< of the cache; null: there is none
};

/// Blocks, and what became of the rows. The result does not depend on the number of threads, nor on the cache. Throws
/// UserError: what JsonlReader, parse_row, format_row and SampleEncoder refuse (of several bad rows, the first), a
/// cache that cannot be written.
EncodedDataset encode_dataset(const DatasetEntry& entry, const std::string& name, const EncodingContext& context);

}  // namespace hone
