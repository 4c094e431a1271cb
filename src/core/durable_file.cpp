#include "core/durable_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.h"

namespace hone {

namespace {

/// Closes a descriptor at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return value_; }
  bool valid() const { return value_ >= 0; }
  bool close() {
    const int result = value_ < 0 ? 0 : ::close(value_);
    value_ = -1;
    return result == 0;
  }

 private:
  int value_;
};

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(descriptor, bytes.data(), bytes.size());
    if (put < 0 && errno != EINTR) return false;
    if (put > 0) bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return true;
}

[[noreturn]] void fail_writing(const std::filesystem::path& path, const std::filesystem::path& temporary) {
  const std::string reason = std::strerror(errno);
  unlink(temporary.c_str());
  throw UserError("the file cannot be written: " + reason, path.string(),
                  "check the folder's permissions and the free space");
}

}  // namespace

void write_durably(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts) {
  const std::filesystem::path temporary = path.string() + "." + std::to_string(getpid()) + ".tmp";
  Descriptor file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) fail_writing(path, temporary);
  for (const std::span<const std::byte> part : parts) {
    if (!write_all(file.get(), part)) fail_writing(path, temporary);
  }
  // A full disk may show here for the first time; what cannot be synced (a pipe, say) is no error.
  const bool synced = fsync(file.get()) == 0 || errno == EINVAL || errno == EROFS;
  if (!synced || !file.close()) fail_writing(path, temporary);
  if (rename(temporary.c_str(), path.c_str()) != 0) fail_writing(path, temporary);
  sync_directory(path.has_parent_path() ? path.parent_path() : ".");
}

void write_durably(const std::filesystem::path& path, std::string_view text) {
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  write_durably(path, std::span(&part, 1));
}

void sync_directory(const std::filesystem::path& directory) {
  const Descriptor folder(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) fsync(folder.get());
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&] {
    throw UserError(std::string("cannot read the file: ") + std::strerror(errno), path.string());
  };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) fail();
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;
  void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) fail();
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace hone
