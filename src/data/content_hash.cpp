#include "data/content_hash.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <optional>
#include <vector>

#include "core/checksum.h"
#include "core/durable_file.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "core/untrusted_json.h"

namespace hone {

namespace {

constexpr size_t kPieceBytes = size_t{16} << 20;
constexpr time_t kSettledSeconds = 1;

struct FileState {
  std::string text;      ///< equal as long as the file is
  bool settled = false;  ///< the last change is long enough ago to be told from a further one
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
    return;  // only a memory: what cannot be read is found again
  }
}

ContentHashes::~ContentHashes() {
  if (!changed_) return;
  try {
    write_durably(memory_, known_.dump(1) + "\n");
  } catch (const UserError&) {
    return;  // only a memory: what cannot be kept is found again
  }
}

std::string ContentHashes::of(const std::filesystem::path& path) {
  const std::string name = std::filesystem::absolute(path).lexically_normal().string();
  const FileState before = state_of(path);
  if (const auto found = known_.find(name); found != known_.end() && found->is_object()) {
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

}  // namespace hone
