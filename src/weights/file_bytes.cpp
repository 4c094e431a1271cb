#include "weights/file_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace hone {

FileBytes::FileBytes(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    const std::string reason = descriptor_ < 0 ? std::strerror(errno) : "it is not a regular file";
    if (descriptor_ >= 0) close(descriptor_);
    throw UserError("the file cannot be read: " + reason, path_.string(), "check the path and its permissions");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

FileBytes::~FileBytes() {
  if (descriptor_ >= 0) close(descriptor_);
}

FileBytes::FileBytes(FileBytes&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

void FileBytes::read(uint64_t offset, void* destination, uint64_t count) const {
  constexpr uint64_t kMost = uint64_t{1} << 30;  // of one call
  if (offset > size_ || count > size_ - offset) {
    throw UserError(fmt::format("the file has {} bytes, and {} from byte {} on are asked for", size_, count, offset),
                    path_.string(), "it is damaged or incomplete: copy it again");
  }
  auto* out = static_cast<char*>(destination);
  while (count > 0) {
    const ssize_t got = pread(descriptor_, out, std::min(count, kMost), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const std::string reason = got == 0 ? "it became shorter while it was read" : std::strerror(errno);
      throw UserError("the file cannot be read: " + reason, path_.string(), "copy it again");
    }
    out += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<uint64_t>(got);
  }
}

std::string FileBytes::read(uint64_t offset, uint64_t count) const {
  if (offset > size_ || count > size_ - offset) read(offset, nullptr, count);  // refused before memory is taken
  std::string bytes(count, '\0');
  read(offset, bytes.data(), count);
  return bytes;
}

}  // namespace hone
