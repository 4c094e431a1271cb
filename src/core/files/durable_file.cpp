#include "core/files/durable_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/files/descriptor.h"
#include "core/files/file_bytes.h"

namespace hone {
namespace {

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(descriptor, bytes.data(), bytes.size());
    if (put < 0 && errno != EINTR) return false;
    if (put > 0) bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return true;
}

}  // namespace

NewFile::NewFile(const std::filesystem::path& path)
    : path_(path), temporary_(temporary_beside(path)), file_(create_new_file(temporary_)) {
  if (file_ < 0) fail();
}

NewFile::~NewFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

void NewFile::write(std::span<const std::byte> bytes) {
  if (!write_all(file_, bytes)) fail();
}

const std::filesystem::path& NewFile::complete() {
  // A full disk may be reported only here.
  if (!sync_file(file_) || close(std::exchange(file_, -1)) != 0) fail();
  return temporary_;
}

void NewFile::finish() {
  complete();
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail();
  sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
}

void NewFile::fail() const {
  const std::string reason = std::strerror(errno);
  unlink(temporary_.c_str());
  throw UserError("the file cannot be written: " + reason, path_.string(),
                  "check the folder's permissions and the free space");
}

bool rename_to_free(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) return false;
  // A file system without this flag, such as NFS.
  if (link(from.c_str(), to.c_str()) == 0) {
    unlink(from.c_str());
    return true;
  }
  if (errno == EEXIST) return false;
  if (is_name_taken(to)) {
    errno = EEXIST;
    return false;
  }
  return rename(from.c_str(), to.c_str()) == 0;  // a folder, or a file system without hard links
}

int create_new_file(const std::filesystem::path& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
}

int open_to_append(const std::filesystem::path& path, bool exclusive) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (exclusive ? O_EXCL : 0);
  int descriptor = open(path.c_str(), flags, 0644);
  if (descriptor < 0 && errno == ELOOP && !exclusive && unlink(path.c_str()) == 0)
    descriptor = open(path.c_str(), flags, 0644);
  if (descriptor < 0 && errno == ENXIO) errno = EINVAL;  // a pipe without a reader
  struct stat status {};
  if (descriptor < 0 || (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode))) return descriptor;
  close(descriptor);
  errno = EINVAL;
  return -1;
}

bool sync_file(int descriptor) {
  return fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS || errno == ENOSYS;
}

bool is_name_taken(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

void write_durably(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts) {
  NewFile file(path);
  for (const std::span<const std::byte> part : parts) file.write(part);
  file.finish();
}

void write_durably(const std::filesystem::path& path, std::string_view text) {
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  write_durably(path, std::span(&part, 1));
}

void copy_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  OpenFile source(from);
  NewFile copy(to);
  std::vector<std::byte> buffer(size_t{1} << 20);
  while (const size_t got = source.read_next(buffer.data(), buffer.size())) copy.write(std::span(buffer).first(got));
  copy.finish();
}

void sync_directory(const std::filesystem::path& directory) {
  const Descriptor folder(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.open()) sync_file(folder.descriptor());
}

void sync_tree(const std::filesystem::path& directory) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_symlink() || !(entry.is_regular_file() || entry.is_directory())) continue;
    const Descriptor opened(open(entry.path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (opened.open() && sync_file(opened.descriptor())) continue;
    throw UserError(std::string("cannot be synced to the disk: ") + std::strerror(errno), entry.path().string(),
                    "check the disk and the free space; nothing that was saved before is lost");
  }
  sync_directory(directory);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&] {
    throw UserError(std::string("cannot read the file: ") + std::strerror(errno), path.string());
  };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.open() || fstat(file.descriptor(), &status) != 0) fail();
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;
  void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (memory == MAP_FAILED) fail();
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".hone-";
constexpr size_t kDigits = 8;
constexpr std::string_view kHex = "0123456789abcdef";

[[noreturn]] void fail(const fs::path& path, int error) {
  throw UserError(std::string("the folder cannot be written: ") + std::strerror(error), path.string(),
                  "check its permissions and the free space; nothing that was saved before is lost");
}

/// Whether the creator of a temporary folder has ended: its marker is not locked.
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

bool remove_marked(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    std::vector<fs::path> contents;
    for (const auto& entry : fs::directory_iterator(path, error)) contents.push_back(entry.path());
    for (const fs::path& entry : contents) {
      if (entry.filename() == kTemporaryMarker) continue;
      fs::remove_all(entry, error);
      if (error) return false;
    }
    fs::remove(path / kTemporaryMarker, error);
  }
  fs::remove(path, error);
  return !error;
}

void mark_temporary(const fs::path& folder) {
  const int marker =
      open((folder / kTemporaryMarker).c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
  if (marker < 0) fail(folder, errno);
  close(marker);
}

TemporaryFolder::TemporaryFolder(const fs::path& path) {
  // remove_leftovers() in another process removes an empty folder, so this one may be gone before it has a marker.
  for (int attempt = 0; attempt < 8; ++attempt) {
    do {
      path_ = temporary_beside(path);
    } while (mkdir(path_.c_str(), 0755) != 0 && errno == EEXIST);
    const fs::path marker = path_ / kTemporaryMarker;
    marker_ = open(marker.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (marker_ >= 0 || errno != ENOENT) break;
  }
  if (marker_ < 0) {
    const int error = errno;
    rmdir(path_.c_str());
    fail(path, error);
  }
  flock(marker_, LOCK_EX | LOCK_NB);  // on a file system without locks, the creator counts as ended
}

TemporaryFolder::~TemporaryFolder() {
  if (marker_ < 0) return;
  remove_marked(path_);
  close(marker_);
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
    // A program killed before it wrote the marker, or after it removed it, leaves an empty folder.
    const bool ours = entry.is_directory(error) ? is_abandoned(entry.path()) || fs::is_empty(entry.path(), error)
                                                : alone && entry.is_regular_file(error);
    if (ours) left.push_back(entry.path());
  }
  for (const fs::path& path : left) remove_marked(path);
}

}  // namespace hone
