#include "core/files/file_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/base/error.h"

namespace hone {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostAtOnce = size_t{1} << 30;           // the bytes of one call
constexpr auto kWaitForWriter = std::chrono::seconds(5);  // for a pipe that no process has opened for writing

int64_t modified_at(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

OpenFile::OpenFile(std::filesystem::path path, FileSource source) : path_(std::move(path)) {
  // Without O_NONBLOCK, open() of a pipe would wait for a writer before fstat can identify the pipe.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat status {};
  if (descriptor_ < 0) {
    // A socket, and a device without hardware, cannot be opened at all.
    unreadable(errno == ENXIO ? "it is not a regular file" : std::strerror(errno));
  }
  try {
    if (fstat(descriptor_, &status) != 0) unreadable(std::strerror(errno));
    regular_ = S_ISREG(status.st_mode);
    pipe_ = S_ISFIFO(status.st_mode);
    const bool stream = pipe_ || (S_ISCHR(status.st_mode) && isatty(descriptor_));
    if (!regular_ && !(stream && source == FileSource::kAlsoPipe)) {
      unreadable(fmt::format("it is {}, not a regular file", kind_of(status.st_mode)));
    }
  } catch (...) {
    close(descriptor_);
    throw;
  }
  if (regular_) size_ = static_cast<uint64_t>(status.st_size);
  modified_ = modified_at(status);
}

void OpenFile::require_unchanged() const {
  struct stat status {};
  if (!regular_ || (fstat(descriptor_, &status) == 0 && static_cast<uint64_t>(status.st_size) == size_ &&
                    modified_at(status) == modified_)) {
    return;
  }
  throw UserError("the file was written to while it is in use", path_.string(),
                  "start again with the file that is meant, and leave it alone meanwhile");
}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      regular_(other.regular_),
      pipe_(other.pipe_),
      size_(other.size_),
      modified_(other.modified_) {}

void OpenFile::unreadable(const std::string& reason) const {
  throw UserError("the file cannot be read: " + reason, path_.string(), "check the path and its permissions");
}

size_t OpenFile::read_next(void* destination, size_t count) {
  const Clock::time_point deadline = Clock::now() + kWaitForWriter;
  size_t done = 0;
  while (done < count) {
    const ssize_t got =
        ::read(descriptor_, static_cast<char*>(destination) + done, std::min(count - done, kMostAtOnce));
    if (got > 0) {
      done += static_cast<size_t>(got);
      continue;
    }
    pollfd waited{descriptor_, POLLIN, 0};
    if (got < 0) {
      if (errno != EINTR && errno != EAGAIN) unreadable(std::strerror(errno));
      poll(&waited, 1, errno == EAGAIN ? -1 : 0);
      continue;
    }
    // The end; but a pipe that no process has opened for writing since this open() is not hung up: a writer may still
    // come.
    if (!pipe_) break;
    const int events = poll(&waited, 1, 50);
    if (events > 0 && (waited.revents & POLLIN) == 0) break;
    if (events == 0 && Clock::now() > deadline) unreadable("nobody writes to this pipe");
  }
  return done;
}

void FileBytes::read(uint64_t offset, void* destination, uint64_t count) const {
  if (offset > size() || count > size() - offset) {
    throw UserError(
        fmt::format("the file has {} bytes, but {} bytes from byte {} on are needed", size(), count, offset),
        path().string(), "it is damaged or incomplete: copy it again");
  }
  auto* out = static_cast<char*>(destination);
  while (count > 0) {
    const ssize_t got =
        pread(file_.descriptor(), out, std::min<uint64_t>(count, kMostAtOnce), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const std::string reason = got == 0 ? "it became shorter while it was read" : std::strerror(errno);
      throw UserError("the file cannot be read: " + reason, path().string(), "copy it again");
    }
    out += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<uint64_t>(got);
  }
}

void FileBytes::prefetch(uint64_t offset, uint64_t count) const {
  posix_fadvise(file_.descriptor(), static_cast<off_t>(offset), static_cast<off_t>(count), POSIX_FADV_WILLNEED);
}

std::string FileBytes::read(uint64_t offset, uint64_t count) const {
  if (offset > size() || count > size() - offset) read(offset, nullptr, count);  // throw before memory is allocated
  std::string bytes(count, '\0');
  read(offset, bytes.data(), count);
  return bytes;
}

std::string read_whole_file(const std::filesystem::path& path, uint64_t most, FileSource source) {
  OpenFile file(path, source);
  const auto check = [&](uint64_t bytes) {
    if (bytes <= most) return;
    throw UserError(fmt::format("the file has more than the {} bytes that such a file may have", most), path.string(),
                    "check that it is the right file");
  };
  check(file.size());
  std::string text;
  // In pieces, since pipes and files of /proc do not report their size.
  bool ended = false;
  for (size_t piece = std::max<size_t>(file.size() + 1, 4096); !ended && text.size() <= most; piece = size_t{1} << 16) {
    const size_t known = text.size();
    text.resize(known + piece);
    text.resize(known + file.read_next(text.data() + known, piece));
    ended = text.size() < known + piece;
  }
  check(text.size());
  return text;
}

std::optional<std::string> read_whole_file_if_there(const std::filesystem::path& path, uint64_t most) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  return read_whole_file(path, most);
}

}  // namespace hone
