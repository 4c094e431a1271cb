// The samples of source code as a file: all_data.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset_reader.h"

namespace hone {

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
