// One data set to blocks of samples: reads, formats and encodes in parallel, or takes them from a cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/thread_pool.h"
#include "data/block_builder.h"
#include "data/chat_encoder.h"
#include "data/dataset_reader.h"
#include "data/dataset_report.h"
#include "data/sample_encoder.h"
#include "data/token_block.h"
#include "data/token_cache.h"

namespace hone {

// What is read, and how it becomes samples.

struct DataOptions {
  std::vector<DatasetEntry> datasets = {};
  std::vector<DatasetEntry> eval_datasets = {};
  /// Rows held back from `datasets` for evaluation: a share below 1, or a number. Only without eval_datasets.
  double val_split = 0;
  int64_t max_length = 4096;
  Overlength overlength = Overlength::kDrop;
  ChatEncoderOptions chat = {};  ///< the template and what of it is learnt
  uint64_t data_seed = 42;       ///< draws the validation split
  int64_t vocab_size = 0;        ///< rows of the model's embedding
  /// Data that check_dataset refuses is warned of and used.
  bool tolerant = false;
  /// The folder in which tokenized data sets are kept; empty: none is, they stay in memory.
  std::string tokenized_cache = {};
  /// Tokens that the configuration gives a role (text/tokenizer_config.h).
  Json token_choice = Json::object();
  /// What the tokenizer was read from: a cache of other files does not fit.
  std::vector<std::string> tokenizer_files = {};
  /// Tokens of a block (data/token_block.h), about: bounds what is in memory while a cache is built.
  int64_t block_tokens = int64_t{1} << 24;
};

std::string_view name_of(Overlength overlength);
std::string_view name_of(TrainOn train_on);

/// "drop", "truncate_left", "truncate_right", "split" or "error"; anything else is a UserError.
Overlength overlength_of(std::string_view name);

/// "assistant", "last", "all" or "completion"; anything else is a UserError.
TrainOn train_on_of(std::string_view name);

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
