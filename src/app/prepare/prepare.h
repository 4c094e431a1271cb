// hone prepare: what happens to data before step 0, without a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/train/train_verbs.h"

namespace hone {

struct PrepareOptions {
  RunRequest run;
  std::optional<int64_t> debug;        ///< show so many samples whole
  std::optional<int64_t> split_nodes;  ///< write one file a node in place of everything else
  std::string output;                  ///< with split_nodes, and for data sets of type code: where
};

/// Tokenises the data sets of a configuration (into tokenized_cache, if it is stated), and prints the report and the
/// proof sheet; of the model it needs config.json and the tokenizer. With split_nodes writes shards
/// and needs no model; with an output alone it writes the samples of data sets of type code
/// (data/prepared_files.h). Returns the exit code.
int run_prepare(const PrepareOptions& options);

}  // namespace hone
