// What is read, and how it becomes samples.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/chat_encoder.h"
#include "data/dataset_reader.h"
#include "data/sample_store.h"

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
};

/// "drop", "truncate_left", "truncate_right", "split" or "error"; anything else is a UserError.
Overlength overlength_of(std::string_view name);

/// "assistant", "last", "all" or "completion"; anything else is a UserError.
TrainOn train_on_of(std::string_view name);

}  // namespace hone
