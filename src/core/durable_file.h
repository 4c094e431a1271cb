// Files and folders that are whole or not there: written under another name, synced, renamed; and files mapped into
// memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hone {

/// Writes `parts` one after the other under a temporary name (below) beside `path`, syncs, renames it to
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

// Files and folders on their way to their names: NAME.hone-1a2b3c4d.tmp. The name is drawn at random and made
// exclusively, so nothing of anybody is replaced, and what a killed program leaves behind is recognised: by the name,
// and a folder by a marker inside, which its maker holds locked while it lives.

/// What becomes of a file or folder with such a name.
struct TemporaryName {
  std::string base;    ///< the name it is on its way to
  std::string ending;  ///< "tmp": being written; others are their makers'
};

/// A new random name beside `path`: PATH.hone-<8 hex digits>.ENDING. Nothing is made.
std::filesystem::path temporary_beside(const std::filesystem::path& path, std::string_view ending = "tmp");
/// Nothing if `name` is not one that temporary_beside makes.
std::optional<TemporaryName> parse_temporary(std::string_view name);

/// A folder that is filled under a temporary name and goes away with this object unless it got its own.
class TemporaryFolder {
 public:
  /// Makes PATH.hone-XXXXXXXX.tmp with the marker inside. UserError if that cannot be made.
  explicit TemporaryFolder(const std::filesystem::path& path);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Renames it to `name`, which is not there or an empty folder, removes the marker and syncs the parent. The contents
  /// are to be synced before (sync_tree). UserError if something stands at `name`.
  void rename_to(const std::filesystem::path& name);

 private:
  std::filesystem::path path_;
  int marker_ = -1;
};

/// The marker's name: what has it inside was made by this program and may be removed when its maker is gone.
inline constexpr const char* kTemporaryMarker = ".hone-temporary";

/// Writes the marker into a folder that is about to get a temporary name.
void mark_temporary(const std::filesystem::path& folder);

/// Removes what killed programs left in `folder`: temporary folders (ending "tmp", the marker inside, its maker gone)
/// and, where `alone` says that nobody else writes there now, temporary files and empty temporary folders. With `base`
/// only those on their way to that name. What cannot be removed stays.
void remove_leftovers(const std::filesystem::path& folder, bool alone, std::string_view base = {});

}  // namespace hone
