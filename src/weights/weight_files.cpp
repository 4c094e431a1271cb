#include "weights/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "weights/other_weights.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

/// "a, b, c and 40 more"
std::string few_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 3; ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > 3) text += fmt::format(" and {} more", names.size() - 3);
  return text;
}

std::vector<std::pair<std::string, std::string>> read_index(const fs::path& path) {
  const Json json = read_json(path);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw UserError("the index has no weight_map", path.string(), "download it again");
  }
  std::vector<std::pair<std::string, std::string>> shard_of;
  shard_of.reserve(json["weight_map"].size());
  for (const auto& [name, shard] : json["weight_map"].items()) {
    if (!shard.is_string() || fs::path(shard.get<std::string>()).has_parent_path()) {
      throw UserError("the index names no file of this folder for '" + name + "'", path.string());
    }
    shard_of.emplace_back(name, shard.get<std::string>());
  }
  return shard_of;
}

/// Shards of one save: "model-", 7.
using ShardSet = std::pair<std::string, int64_t>;

/// The set and the number of NAME-00001-of-00007.safetensors.
std::optional<std::pair<ShardSet, int64_t>> parse_shard(const std::string& file) {
  constexpr std::string_view kMiddle = "-of-", kEnd = ".safetensors";
  const size_t middle = file.rfind(kMiddle);
  if (middle == std::string::npos || !file.ends_with(kEnd)) return std::nullopt;
  const auto number = [](const std::string& text) -> std::optional<int64_t> {
    constexpr size_t kMostDigits = 9;
    if (text.empty() || text.size() > kMostDigits) return std::nullopt;
    if (text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
    return std::stoll(text);
  };
  const size_t dash = file.rfind('-', middle - 1), second = middle + kMiddle.size();
  if (middle == 0 || dash == std::string::npos || second + kEnd.size() >= file.size()) return std::nullopt;
  const auto which = number(file.substr(dash + 1, middle - dash - 1));
  const auto total = number(file.substr(second, file.size() - kEnd.size() - second));
  if (!which || !total) return std::nullopt;
  return std::pair(ShardSet(file.substr(0, dash + 1), *total), *which);
}

std::map<ShardSet, std::map<int64_t, std::string>> shards_in(const fs::path& directory) {
  std::map<ShardSet, std::map<int64_t, std::string>> sets;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (const auto shard = parse_shard(name)) sets[shard->first].emplace(shard->second, name);
  }
  return sets;
}

[[noreturn]] void two_answers(const fs::path& directory, const std::string& others) {
  throw UserError(
      fmt::format("the folder has {} beside {}: two models, or one of them is left over", kSingleName, others),
      directory.string(),
      "keep the one that is meant: transformers reads model.safetensors, other programs the shards");
}

/// All files that the index names are there.
void check_named(const fs::path& directory, const std::set<std::string>& named) {
  std::vector<std::string> missing, unnamed;
  for (const std::string& name : named) {
    if (!fs::exists(directory / name)) missing.push_back(name);
  }
  if (missing.empty()) return;
  for (const auto& [set, shards] : shards_in(directory)) {
    for (const auto& [number, name] : shards) {
      if (!named.contains(name)) unnamed.push_back(name);
    }
  }
  if (unnamed.empty()) {
    throw UserError(
        named.size() > 1 ? "a shard of the checkpoint is missing" : "the model folder has no weights",
        (directory / missing.front()).string(),
        missing.size() == 1 ? "download this file too" : fmt::format("download these files too: {}", few_of(missing)));
  }
  throw UserError(
      fmt::format("the index names files that are not there ({}), and files are there that it does not name "
                  "({})",
                  few_of(missing), few_of(unnamed)),
      (directory / kIndexName).string(),
      "download the index that belongs to these files; or remove it, if they are all: shards are then read "
      "without an index");
}

WeightFiles shards_without_index(const fs::path& directory) {
  const auto sets = shards_in(directory);
  if (sets.empty()) {
    throw UserError("the model folder has no weights", (directory / kSingleName).string(),
                    advice_without_safetensors(directory));
  }
  std::vector<std::string> first_names;
  for (const auto& [set, shards] : sets) first_names.push_back(shards.begin()->second);
  if (sets.size() > 1) {
    throw UserError(
        fmt::format("the folder has shards of {} models and no index: {}", sets.size(), few_of(first_names)),
        directory.string(), "remove those that are left over");
  }
  WeightFiles files;
  const auto& [set, shards] = *sets.begin();
  for (const auto& [number, name] : shards) files.names.push_back(name);
  std::sort(files.names.begin(), files.names.end());
  const int64_t total = set.second;
  const bool whole = static_cast<int64_t>(shards.size()) == total && shards.begin()->first == 1 &&
                     std::prev(shards.end())->first == total;
  if (!whole) {
    throw UserError(fmt::format("the folder has {} of {} shards, and no index", shards.size(), total),
                    (directory / first_names.front()).string(), "download the others too");
  }
  return files;
}

}  // namespace

WeightFiles find_weight_files(const fs::path& directory) {
  const bool single = fs::exists(directory / kSingleName);
  if (!fs::exists(directory / kIndexName)) {
    if (!single) return shards_without_index(directory);
    const auto sets = shards_in(directory);
    if (!sets.empty()) two_answers(directory, sets.begin()->second.begin()->second);
    return {{kSingleName}, {}};
  }
  WeightFiles files;
  files.shard_of = read_index(directory / kIndexName);
  std::set<std::string> named;
  for (const auto& [tensor, shard] : files.shard_of) named.insert(shard);
  check_named(directory, named);
  if (single && !named.contains(kSingleName)) two_answers(directory, kIndexName);
  files.names.assign(named.begin(), named.end());
  return files;
}

}  // namespace hone
