// Which files of a model folder hold its weights.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace hone {

struct WeightFiles {
  std::vector<std::string> names;                             ///< in the folder, sorted
  std::vector<std::pair<std::string, std::string>> shard_of;  ///< tensors of the index, and the shard of each
};

/// One rule: model.safetensors; or the shards that model.safetensors.index.json names; or, without an index, the shards
/// NAME-00001-of-0000N.safetensors, all N of them. UserError with the names where two of these are there, which
/// programs answer differently, where a file is missing, and where there are no weights.
WeightFiles find_weight_files(const std::filesystem::path& directory);

}  // namespace hone
