// Files that are whole or not there: written under another name, synced, renamed; and files mapped into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace hone {

/// Writes `parts` one after the other under a temporary name (core/temporary.h) beside `path`, syncs, renames it to
/// `path` and syncs the folder. A link at `path` is replaced; its target stays. UserError if that fails (a full disk,
/// no permission); what was at `path` is then untouched.
void write_durably(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts);
void write_durably(const std::filesystem::path& path, std::string_view text);

/// Whether something has this name, if only a link that leads nowhere.
bool is_name_taken(const std::filesystem::path& path);

/// Copies a file's bytes as write_durably writes them: a new file that its owner may write, whatever the source's mode.
/// UserError if `from` is not a regular file or a link to one.
void copy_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes renames in a folder survive a power failure. Folders that cannot be opened are left alone.
void sync_directory(const std::filesystem::path& directory);

/// Syncs every file and folder below `directory`, and itself. UserError if the disk cannot hold them. A file system
/// that does not know fsync is no error.
void sync_tree(const std::filesystem::path& directory);

/// Opens a file to append to, and makes it if it is not there (`exclusive`: fails if it is). A link is replaced by a
/// new file; its target stays. The descriptor, or -1 with errno set: EINVAL for what is not a regular file.
int open_to_append(const std::filesystem::path& path, bool exclusive = false);

/// Makes a new file, exclusively and through no link. The descriptor, or -1 with errno set.
int create_new_file(const std::filesystem::path& path);

/// Syncs a file. False with errno set if that fails; that its file system knows no fsync is no failure.
bool sync_file(int descriptor);

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
