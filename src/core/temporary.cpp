#include "core/temporary.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "core/durable_file.h"
#include "core/error.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".hone-";
constexpr size_t kDigits = 8;
constexpr std::string_view kHex = "0123456789abcdef";

[[noreturn]] void fail(const fs::path& path, int error) {
  throw UserError(std::string("the folder cannot be written: ") + std::strerror(error), path.string(),
                  "check its permissions and the free space; nothing that was saved before is lost");
}

/// Whether the maker of a temporary folder is gone: nobody holds its marker.
bool is_abandoned(const fs::path& folder) {
  const int marker = open((folder / kTemporaryMarker).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (marker < 0) return false;
  const bool free = flock(marker, LOCK_EX | LOCK_NB) == 0;
  close(marker);
  return free;
}

}  // namespace

fs::path temporary_beside(const fs::path& path, std::string_view ending) {
  std::random_device random;
  uint32_t value = random();
  std::string name = (path.has_filename() ? path : path.parent_path()).string();
  name += kMark;
  for (size_t i = 0; i < kDigits; ++i, value >>= 4) name += kHex[value & 15];
  name += '.';
  return name.append(ending);
}

std::optional<TemporaryName> parse_temporary(std::string_view name) {
  const size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos || mark == 0) return std::nullopt;
  const std::string_view rest = name.substr(mark + kMark.size());
  if (rest.size() < kDigits + 2 || rest[kDigits] != '.') return std::nullopt;
  if (rest.substr(0, kDigits).find_first_not_of(kHex) != std::string_view::npos) return std::nullopt;
  return TemporaryName{std::string(name.substr(0, mark)), std::string(rest.substr(kDigits + 1))};
}

void mark_temporary(const fs::path& folder) {
  const int marker =
      open((folder / kTemporaryMarker).c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
  if (marker < 0) fail(folder, errno);
  close(marker);
}

TemporaryFolder::TemporaryFolder(const fs::path& path) {
  do {
    path_ = temporary_beside(path);
  } while (mkdir(path_.c_str(), 0755) != 0 && errno == EEXIST);
  const fs::path marker = path_ / kTemporaryMarker;
  marker_ = open(marker.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (marker_ < 0) {
    const int error = errno;
    rmdir(path_.c_str());
    fail(path, error);
  }
  flock(marker_, LOCK_EX | LOCK_NB);  // where the file system has no locks, its maker passes for gone
}

TemporaryFolder::~TemporaryFolder() {
  if (marker_ < 0) return;
  close(marker_);
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void TemporaryFolder::rename_to(const fs::path& name) {
  const fs::path target = name.has_filename() ? name : name.parent_path();
  if (rename(path_.c_str(), target.c_str()) != 0) fail(target, errno);
  close(std::exchange(marker_, -1));
  unlink((target / kTemporaryMarker).c_str());
  sync_directory(target.has_parent_path() ? target.parent_path() : ".");
}

void remove_leftovers(const fs::path& folder, bool alone, std::string_view base) {
  std::error_code error;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto name = parse_temporary(entry.path().filename().string());
    if (!name || name->ending != "tmp" || (!base.empty() && name->base != base) || entry.is_symlink(error)) continue;
    // A maker that was killed before it wrote the marker leaves an empty folder.
    const bool ours = entry.is_directory(error)
                          ? is_abandoned(entry.path()) || (alone && fs::is_empty(entry.path(), error))
                          : alone && entry.is_regular_file(error);
    if (ours) left.push_back(entry.path());
  }
  for (const fs::path& path : left) fs::remove_all(path, error);
}

}  // namespace hone
