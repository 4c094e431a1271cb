// Files that a crash or a full disk must not corrupt: append without a user-space buffer, replace by rename.
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
  void sync();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
};

/// Writes `content` to a temporary file beside `path`, syncs it and renames it over `path`: readers see the old
/// or the new content, never a part. Errors are std::system_error with the path in the message.
void replace_file(const std::string& path, std::string_view content);

}  // namespace hone
