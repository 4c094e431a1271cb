// Files that are whole or not there: written under another name, synced, renamed; and files mapped into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace hone {

/// Writes `parts` one behind the other under a temporary name beside `path`, syncs, renames it to `path` and syncs the
/// folder. UserError if that fails (a full disk, no permission); what was at `path` is then untouched.
void write_durably(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts);
void write_durably(const std::filesystem::path& path, std::string_view text);

/// Makes renames in a folder survive a power failure. Folders that cannot be opened are left alone.
void sync_directory(const std::filesystem::path& directory);

/// A file read through the page cache: memory that the system may take back and read again.
class MappedFile {
 public:
  /// UserError if the file cannot be read.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace hone
