// Files that a crash or a full disk must not corrupt: records are appended without a user-space buffer. What is
// replaced as a whole is written by core/durable_file.h.
#pragma once

#include <string>
#include <string_view>

namespace hone {

/// Appends whole records to a file. Each write reaches the kernel before it returns, so a crash of the process loses
/// nothing that was written. Errors are std::system_error with the path in the message.
class AppendFile {
 public:
  /// Creates the file if it does not exist, and its parent directories. `exclusive`: fail if it exists.
  explicit AppendFile(std::string path, bool exclusive = false);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  void write(std::string_view record);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace hone
