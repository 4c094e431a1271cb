#include "data/token_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>

#include "core/checksum.h"
#include "core/durable_file.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "core/untrusted_json.h"
#include "data/block_file.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";

/// Letters of `name` that every file system takes.
std::string file_name_of(const std::string& name) {
  std::string safe;
  for (const char c : name.substr(0, 64)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
    safe += plain ? c : '_';
  }
  return safe;
}

/// The manifest of a cache, or something that is not an object.
Json read_manifest(const fs::path& folder) {
  try {
    return read_json_if_there(folder / kManifest).value_or(Json());
  } catch (const UserError&) {
    return Json();  // it is made again
  }
}

std::string shown(const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

/// Objects of hashes by path.
void describe_files(const Json& before, const Json& now, std::vector<std::string>& texts) {
  for (const auto& [path, hash] : now.items()) {
    if (!before.contains(path)) {
      texts.push_back(path + " is new");
    } else if (before[path] != hash) {
      texts.push_back(path + " has changed");
    }
  }
  for (const auto& [path, hash] : before.items()) {
    if (!now.contains(path)) texts.push_back(path + " is no longer there");
  }
}

}  // namespace

std::string describe_differences(const Json& before, const Json& now) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : now.items()) {
    const Json old = before.value(name, Json());
    if (old == value) continue;
    if (name.ends_with("_files") && value.is_object() && old.is_object()) {
      describe_files(old, value, texts);
    } else if (name.ends_with("_hash")) {
      texts.push_back(fmt::format("{} has changed", name.substr(0, name.size() - 5)));
    } else {
      texts.push_back(fmt::format("{} is {}, was {}", name, shown(value), shown(old)));
    }
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

TokenCache::TokenCache(const fs::path& root, const std::string& name, const Json& inputs)
    : root_(root), inputs_(parse_json(inputs.dump())), key_(hash_text(xxh64(inputs_.dump()))) {
  folder_ = root_ / fmt::format("{}-{}", file_name_of(name), key_);
}

TokenCache::~TokenCache() {
  if (lock_ >= 0) close(lock_);  // releases it
}

fs::path TokenCache::block_path(int64_t index) const { return folder_ / fmt::format("block-{:05}.bin", index); }

std::optional<TokenCache::Contents> TokenCache::open(ThreadPool& pool) {
  problem_.clear();
  const Json manifest = read_manifest(folder_);
  if (!fs::exists(folder_ / kManifest)) {
    if (!fs::exists(block_path(0))) explain_absence();
    return std::nullopt;
  }
  Contents contents;
  std::vector<int64_t> first_rows;
  try {
    if (manifest.at("inputs") != inputs_) throw UserError("it is of other inputs");
    contents.about = manifest.at("about");
    manifest.at("first_rows").get_to(first_rows);
  } catch (const std::exception& error) {
    problem_ = fmt::format("{} is damaged", (folder_ / kManifest).string());
    return std::nullopt;
  }
  contents.blocks.resize(first_rows.size());
  try {
    pool.parallel_for(static_cast<int64_t>(first_rows.size()), [&](int64_t i, int) {
      const auto index = static_cast<size_t>(i);
      contents.blocks[index] = read_block(block_path(i), {key_, i, first_rows[index]});
    });
  } catch (const UserError& error) {
    problem_ = fmt::format("{}: {}", error.where(), error.message());
    return std::nullopt;
  }
  return contents;
}

void TokenCache::explain_absence() {
  std::error_code error;
  fs::file_time_type newest = fs::file_time_type::min();
  for (const auto& entry : fs::directory_iterator(root_, error)) {
    const fs::path manifest_path = entry.path() / kManifest;
    const Json manifest = read_manifest(entry.path());
    if (!manifest.is_object() || !manifest.contains("inputs") || !manifest["inputs"].is_object()) continue;
    const Json& inputs = manifest["inputs"];
    const auto written = fs::last_write_time(manifest_path, error);
    if (inputs.value("path", Json()) != inputs_.value("path", Json()) || written < newest) continue;
    newest = written;
    problem_ = describe_differences(inputs, inputs_);
  }
}

void TokenCache::lock(const std::function<void()>& waiting) {
  if (lock_ >= 0) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  const fs::path path = folder_ / "lock";
  lock_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) {
    throw UserError(fmt::format("the cache cannot be written: {}", std::strerror(errno)), path.string(),
                    "let tokenized_cache be a folder that you may write, or leave it out");
  }
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return;
  waiting();
  while (flock(lock_, LOCK_EX) != 0 && errno == EINTR) continue;
}

std::vector<TokenBlock> TokenCache::partial() {
  HONE_ASSERT(lock_ >= 0);
  std::error_code error;
  fs::remove(folder_ / kManifest, error);
  std::vector<TokenBlock> blocks;
  first_rows_.clear();
  rows_ = 0;
  const auto index = [&] { return static_cast<int64_t>(blocks.size()); };
  while (fs::exists(block_path(index()))) {
    try {
      blocks.push_back(read_block(block_path(index()), {key_, index(), rows_}));
    } catch (const UserError&) {
      break;  // it and what follows is encoded again
    }
    first_rows_.push_back(rows_);
    rows_ += blocks.back().report.rows;
  }
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    const bool whole = name.ends_with(".bin") && entry.path() < block_path(index());
    if (name != "lock" && !whole) fs::remove(entry.path(), error);
  }
  return blocks;
}

void TokenCache::add(const TokenBlock& block) {
  HONE_ASSERT(lock_ >= 0);
  const auto index = static_cast<int64_t>(first_rows_.size());
  write_block(block_path(index), block, {key_, index, rows_});
  first_rows_.push_back(rows_);
  rows_ += block.report.rows;
}

void TokenCache::finish(const Json& about) {
  HONE_ASSERT(lock_ >= 0);
  const Json manifest = {{"about", about}, {"inputs", inputs_}, {"first_rows", first_rows_}};
  write_durably(folder_ / kManifest, manifest.dump(1) + "\n");
}

}  // namespace hone
