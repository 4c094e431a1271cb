#include "data/dataset/token_cache.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {
namespace {

constexpr std::array<char, 8> kMagic = {'h', 'o', 'n', 'e', 'b', 'l', 'k', '1'};
constexpr size_t kAlignment = 64;

struct Prefix {
  std::array<char, 8> magic = kMagic;
  uint64_t checksum = 0;  ///< covers all bytes after it
  uint64_t header_bytes = 0;
};

size_t aligned(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

/// The arrays of a block in the order of the file.
std::array<std::span<const std::byte>, 5> sections_of(const TokenBlock& block) {
  return {std::as_bytes(block.samples), std::as_bytes(block.input_ids), std::as_bytes(block.labels),
          std::as_bytes(block.weights), std::as_bytes(block.lengths)};
}

Json header_of(const TokenBlock& block, const BlockPlace& place) {
  return {{"key", place.key},
          {"index", place.index},
          {"first_row", place.first_row},
          {"samples", block.samples.size()},
          {"tokens", block.input_ids.size()},
          {"weights", block.weights.size()},
          {"lengths", block.lengths.size()},
          {"digest", hash_text(block.digest)},
          {"report", block.report.to_json()}};
}

/// Reads a mapped block from front to back.
class BlockReader {
 public:
  BlockReader(const std::filesystem::path& path, std::shared_ptr<const MappedFile> file)
      : path_(path), file_(std::move(file)), rest_(file_->bytes()) {}

  TokenBlock read(const BlockPlace& place) {
    const Json header = read_header();
    TokenBlock block;
    try {
      const bool same = header.at("key") == place.key && header.at("index") == place.index &&
                        header.at("first_row") == place.first_row;
      if (!same) fail("it is a block of other data");
      block.report = RowsReport::from_json(header.at("report"));
      const size_t tokens = header.at("tokens");
      block.samples = section<SampleRecord>(header.at("samples"));
      block.input_ids = section<int32_t>(tokens);
      block.labels = section<int32_t>(tokens);
      block.weights = section<float>(header.at("weights"));
      block.lengths = section<int32_t>(header.at("lengths"));
      block.digest = std::stoull(header.at("digest").get<std::string>(), nullptr, 16);
    } catch (const std::exception& error) {
      if (dynamic_cast<const UserError*>(&error)) throw;
      fail(std::string("its header is damaged: ") + error.what());
    }
    check(block);
    block.memory = file_;
    return block;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw UserError(what, path_.string()); }

  std::span<const std::byte> take(size_t bytes) {
    if (rest_.size() < bytes) fail("it is too short");
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }

  Json read_header() {
    Prefix prefix;
    std::memcpy(&prefix, take(sizeof(prefix)).data(), sizeof(prefix));
    if (prefix.magic != kMagic) fail("it has another version, or is not a block");
    constexpr size_t kChecked = offsetof(Prefix, header_bytes);
    if (Xxh64().update(file_->bytes().subspan(kChecked)).digest() != prefix.checksum) fail("its checksum is wrong");
    const auto text = take(prefix.header_bytes);
    skip_padding();
    return parse_json(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
  }

  void skip_padding() {
    const size_t at = file_->bytes().size() - rest_.size();
    take(std::min(aligned(at) - at, rest_.size()));
  }

  template <class Element>
  std::span<const Element> section(size_t count) {
    if (count > rest_.size()) fail("it is too short");  // before a product that could overflow
    const auto bytes = take(count * sizeof(Element));
    skip_padding();
    return {reinterpret_cast<const Element*>(bytes.data()), count};
  }

  void check(const TokenBlock& block) const {
    if (!block.weights.empty() && block.weights.size() != block.input_ids.size()) fail("its arrays do not match");
    for (const SampleRecord& sample : block.samples) {
      const auto tokens = static_cast<int64_t>(block.input_ids.size());
      if (sample.begin < 0 || sample.length < 0 || sample.begin > tokens - sample.length)
        fail("its arrays do not match");
    }
  }

  const std::filesystem::path& path_;
  std::shared_ptr<const MappedFile> file_;
  std::span<const std::byte> rest_;
};

}  // namespace

void write_block(const std::filesystem::path& path, const TokenBlock& block, const BlockPlace& place) {
  static constexpr std::array<std::byte, kAlignment> kPadding{};
  const std::string header = header_of(block, place).dump();
  Prefix prefix;
  prefix.header_bytes = header.size();
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(&prefix, 1))};
  size_t at = sizeof(prefix);
  const auto add = [&](std::span<const std::byte> part) {
    parts.push_back(part);
    at += part.size();
    parts.push_back(std::span(kPadding).first(aligned(at) - at));
    at = aligned(at);
  };
  add(std::as_bytes(std::span(header)));
  for (const std::span<const std::byte> section : sections_of(block)) add(section);
  Xxh64 checksum;
  checksum.update(prefix.header_bytes);
  for (const std::span<const std::byte> part : std::span(parts).subspan(1)) checksum.update(part);
  prefix.checksum = checksum.digest();
  write_durably(path, parts);
}

TokenBlock read_block(const std::filesystem::path& path, const BlockPlace& place) {
  return BlockReader(path, std::make_shared<const MappedFile>(path)).read(place);
}

namespace {

constexpr size_t kPieceBytes = size_t{16} << 20;
constexpr time_t kSettledSeconds = 1;

struct FileState {
  std::string text;      ///< equal while the file is unchanged
  bool settled = false;  ///< the last change is old enough to be distinguished from a new one
};

FileState state_of(const std::filesystem::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    throw UserError(std::string("cannot read the file: ") + std::strerror(errno), path.string());
  }
  const time_t changed = std::max(status.st_mtim.tv_sec, status.st_ctim.tv_sec);
  return {fmt::format("{} {}.{:09} {}.{:09} {}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
                      status.st_ctim.tv_sec, status.st_ctim.tv_nsec, status.st_ino),
          std::time(nullptr) - changed > kSettledSeconds};
}

}  // namespace

std::string content_hash(const std::filesystem::path& path, ThreadPool& pool) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  std::vector<uint64_t> pieces((bytes.size() + kPieceBytes - 1) / kPieceBytes);
  pool.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t i, int) {
    const size_t begin = static_cast<size_t>(i) * kPieceBytes;
    pieces[static_cast<size_t>(i)] =
        Xxh64().update(bytes.subspan(begin, std::min(kPieceBytes, bytes.size() - begin))).digest();
  });
  return hash_text(Xxh64().update(bytes.size()).update(std::span<const uint64_t>(pieces)).digest());
}

ContentHashes::ContentHashes(std::filesystem::path memory, ThreadPool& pool) : memory_(std::move(memory)), pool_(pool) {
  try {
    if (std::optional<Json> json = read_json_if_there(memory_); json && json->is_object()) known_ = std::move(*json);
  } catch (const UserError&) {
    return;  // these hashes are computed again
  }
}

ContentHashes::~ContentHashes() {
  if (!changed_) return;
  try {
    write_durably(memory_, known_->dump(1) + "\n");
  } catch (const UserError&) {
    return;  // the next run computes them again
  }
}

std::string ContentHashes::of(const std::filesystem::path& path) {
  const std::string name = std::filesystem::absolute(path).lexically_normal().string();
  const FileState before = state_of(path);
  if (const auto found = known_->find(name); found != known_->end() && found->is_object()) {
    const bool same = found->value("state", Json()) == before.text;
    if (same && found->value("hash", Json()).is_string()) return found->at("hash");
  }
  const std::string hash = content_hash(path, pool_);
  if (before.settled && state_of(path).text == before.text) {
    known_[name] = {{"state", before.text}, {"hash", hash}};
    changed_ = true;
  }
  return hash;
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";

/// `name` with only characters that every file system accepts.
std::string file_name_of(const std::string& name) {
  std::string safe;
  for (const char c : name.substr(0, 64)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
    safe += plain ? c : '_';
  }
  return safe;
}

/// The manifest of a cache, or a value that is not an object.
Json read_manifest(const fs::path& folder) {
  try {
    return read_json_if_there(folder / kManifest).value_or(Json());
  } catch (const UserError&) {
    return Json();  // it will be written again
  }
}

std::string shown(const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

/// Describes the differences between objects of hashes by path.
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
    if (manifest.at("inputs") != inputs_) throw UserError("its inputs differ");
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
    if (inputs.value("path", Json()) != inputs_->value("path", Json()) || written < newest) continue;
    newest = written;
    problem_ = describe_differences(inputs, inputs_);
  }
}

void TokenCache::lock(const std::function<void()>& waiting) {
  if (lock_ >= 0) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  const fs::path path = folder_ / "lock";
  lock_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (lock_ < 0) {
    throw UserError(fmt::format("the cache cannot be written: {}", std::strerror(errno)), path.string(),
                    "set tokenized_cache to a writable folder, or remove it");
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
      break;  // this block and the following ones are encoded again
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
