#include "report/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/durable_file.h"

namespace hone {
namespace {

[[noreturn]] void fail(int error, const std::string& path) {
  throw std::system_error(error, std::generic_category(), "cannot write " + path);
}

}  // namespace

AppendFile::AppendFile(std::string path, bool exclusive) : path_(std::move(path)) {
  const auto folder = std::filesystem::path(path_).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) fail(error.value(), folder.string());
  fd_ = open_to_append(path_, exclusive);
  if (fd_ < 0) fail(errno, path_);
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept : path_(std::move(other.path_)), fd_(other.fd_) { other.fd_ = -1; }

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

void AppendFile::write(std::string_view record) {
  while (!record.empty()) {
    const ssize_t written = ::write(fd_, record.data(), record.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno, path_);
    record.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace hone
