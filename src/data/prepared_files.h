// What `hone prepare` writes for other runs: parts of data sets for nodes, and samples of source code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset_encoding.h"
#include "data/dataset_reader.h"

namespace hone {

// Data sets shuffled and cut into one file a node, for nodes that each train on their own part.

struct NodeShardOptions {
  int64_t nodes = 1;
  std::filesystem::path output;
  uint64_t seed = 42;
};

struct NodeShards {
  int64_t total_samples = 0;
  int64_t samples_per_node = 0;  ///< the last node has the remainder, too
  std::vector<std::string> columns;
  std::vector<std::filesystem::path> files;
  std::filesystem::path statistics;
};

/// Reads all rows, shuffles them by the seed, and writes OUTPUT/training_data_node_{i}.csv, i from 0, each with
/// floor(rows / nodes) rows and the last one with the rest; rows that do not all have the columns prompt, question and
/// response and only text in their fields become training_data_node_{i}.jsonl. OUTPUT/dataset_stats.json has
/// total_samples, num_nodes, samples_per_node and columns. The rows are held in memory.
/// Throws UserError: unreadable rows, fewer rows than nodes, an output folder with files that are not of this kind.
NodeShards write_node_shards(const std::vector<DatasetEntry>& entries, const NodeShardOptions& options);

// The samples of source code as a file: all_data.jsonl.

struct CodeFile {
  std::filesystem::path path;
  int64_t samples = 0;
  std::vector<std::string> statistics;  ///< of each data set, what was found and created
};

/// Writes OUTPUT/all_data.jsonl with a line {"text", "type", "file", "line"} for each sample of `entries`, which are
/// all of type code; it is a data set of the format text. One sample is in memory at a time. `count` as CodeReader
/// takes it. Throws UserError: what CodeReader refuses, a file that cannot be written.
CodeFile write_code_file(const std::vector<DatasetEntry>& entries, const TokenCounter& count,
                         const std::filesystem::path& output);

}  // namespace hone
