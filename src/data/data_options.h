// What is read, and how it becomes samples.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/block_builder.h"
#include "data/chat_encoder.h"
#include "data/dataset_reader.h"

namespace hone {

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
  /// Tokens that the configuration gives a role (text/token_choice.h).
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

}  // namespace hone
