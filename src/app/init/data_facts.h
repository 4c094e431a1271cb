// What hone init reads from a data set: thoughts of its chats, whether it is plain text, the lengths of its samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "data/dataset/dataset_reader.h"

namespace hone {

/// Lengths in tokens, of up to some thousand rows at even distances.
struct SampleLengths {
  int64_t rows = 0;     ///< in the data set, measured or not; 0: nothing is known
  int64_t tokens = 0;   ///< in all rows, by the mean of those measured
  int64_t p99 = 0;      ///< 99th percentile
  int64_t longest = 0;  ///< the longest row measured
};

struct DataFacts {
  std::string thinking_switch;  ///< the template's switch (text/thinking.h); "" = it has none
  int64_t rows = 0;
  int64_t chats = 0, with_thoughts = 0;
  bool plain_text = false;  ///< every row is text without a prompt
  SampleLengths lengths;
  std::string problem;     ///< why the rows cannot be read; nothing above but thinking_switch is known then
  std::string unmeasured;  ///< why the rows cannot be encoded; lengths is unknown then
};

/// Reads the template of the model in `directory` (empty: no template, no tokenizer) and all rows of `data` (a path "":
/// none), as `hone train` does without further keys. `vocab_size`: rows of the model's embedding. Data that are not
/// readable throw nothing.
DataFacts look_at_data(const std::filesystem::path& directory, const DatasetEntry& data, int64_t vocab_size);

/// The keys of the configuration that follow from lengths.
struct BatchSizes {
  int64_t max_length = 0, per_device = 0, global = 0;
  int64_t steps_per_epoch = 0;  ///< about; 0: not known
};

/// Sizes for packed samples of a model that allows `model_length` tokens: max_length holds the longest sample if that
/// is at most twice the 99th percentile, else that percentile (plain text, which is cut into pieces: at most the usual
/// length); a step has `most_sequences` sequences of usual length at most, and few enough that an epoch has some tens
/// of steps. Without lengths: usual ones.
BatchSizes batch_sizes(const DataFacts& data, int64_t model_length, int64_t most_sequences);

}  // namespace hone
