// The output files of `hone prepare`: shards of data sets for nodes, and samples of source code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/files/output_files.h"
#include "data/dataset/dataset_encoding.h"
#include "data/dataset/dataset_reader.h"

namespace hone {

// Shards: data sets, shuffled and split into one file per node, for nodes that each train on their own shard.

struct NodeShardOptions {
  int64_t nodes = 1;
  std::filesystem::path output;
  uint64_t seed = 42;
  OutputRule rule = {};  ///< with `replace`, shards of an earlier run are replaced
};

struct NodeShards {
  int64_t total_samples = 0;
  int64_t samples_per_node = 0;  ///< the last node also has the remainder
  std::vector<std::string> columns;
  std::vector<std::filesystem::path> files;
  std::filesystem::path statistics;
};

/// Reads all rows, shuffles them by the seed, and writes OUTPUT/training_data_node_{i}.csv, i from 0, with floor(rows /
/// nodes) rows each; the last one also has the remainder. If not all rows have the columns prompt, question and
/// response, or some field is not text, it writes training_data_node_{i}.jsonl instead. OUTPUT/dataset_stats.json
/// contains total_samples, num_nodes, samples_per_node and columns. Keeps all rows in memory. All files appear together
/// (core/files/output_files.h); the data sets are inputs.
/// Throws UserError for unreadable rows, fewer rows than nodes, and an output folder with shards, or, if they may be
/// replaced, with shards of more nodes.
NodeShards write_node_shards(const std::vector<DatasetEntry>& entries, const NodeShardOptions& options);

// The samples of source code as a file: all_data.jsonl.

struct CodeFile {
  std::filesystem::path path;
  int64_t samples = 0;
  std::vector<std::string> statistics;  ///< for each data set, the items found and the samples created
};

/// Writes OUTPUT/all_data.jsonl with a line {"text", "type", "file", "line"} for each sample of `entries`, which all
/// have type code; the file is a data set of the format text. Keeps one sample in memory. `count` as for CodeReader.
/// Throws UserError for errors of CodeReader, and if the file cannot be written or exists and `rule` does not replace
/// it.
CodeFile write_code_file(const std::vector<DatasetEntry>& entries, const TokenCounter& count,
                         const std::filesystem::path& output, OutputRule rule = {});

}  // namespace hone
