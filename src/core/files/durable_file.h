// Durable files and folders: complete or absent, because they are written under a temporary name, synced and renamed.
// Also maps files into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hone {

/// Writes `parts` one after another under a temporary name (below) next to `path`, syncs, renames to `path` and syncs
/// the folder. A link at `path` is replaced; its target is unchanged. Throws UserError on failure (a full disk, no
/// permission); the old file at `path` is then unchanged.
void write_durably(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts);
void write_durably(const std::filesystem::path& path, std::string_view text);

/// A file that is written piece by piece under a temporary name (below) next to `path`. It is removed with this object
/// unless it has been finished. Throws UserError on failure, as write_durably.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// Syncs, renames to `path` and syncs the folder. Replaces a file at `path`.
  void finish();
  /// Syncs and closes the file, whose temporary name it returns. The caller renames or removes it.
  const std::filesystem::path& complete();

 private:
  [[noreturn]] void fail() const;

  const std::filesystem::path path_, temporary_;
  int file_ = -1;
};

/// Renames a file or a folder, and replaces nothing. Returns false with errno set on failure: EEXIST if `to` exists.
bool rename_to_free(const std::filesystem::path& from, const std::filesystem::path& to);

/// Whether `path` exists, if only as a dangling link.
bool is_name_taken(const std::filesystem::path& path);

/// Copies a file like write_durably: the new file is writable by its owner, whatever the mode of the source. Throws
/// UserError if `from` is not a regular file or a link to one.
void copy_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes renames in a folder survive a power failure. Ignores folders that cannot be opened.
void sync_directory(const std::filesystem::path& directory);

/// Syncs `directory` and every file and folder below it. Throws UserError if that fails. A file system without fsync is
/// not an error.
void sync_tree(const std::filesystem::path& directory);

/// Opens a file for appending, and creates it if it does not exist (`exclusive`: fails if it exists). A link is
/// replaced by a new file; its target is unchanged. Returns the descriptor, or -1 with errno set: EINVAL if it is not a
/// regular file.
int open_to_append(const std::filesystem::path& path, bool exclusive = false);

/// Creates a new file exclusively; does not follow links. Returns the descriptor, or -1 with errno set.
int create_new_file(const std::filesystem::path& path);

/// Syncs a file. Returns false with errno set on failure; a file system without fsync is not a failure.
bool sync_file(int descriptor);

/// A file mapped through the page cache: the system may drop its pages and read them again.
class MappedFile {
 public:
  /// Throws UserError if the file cannot be read.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Temporary files and folders: NAME.hone-1a2b3c4d.tmp. The name is random and created exclusively, so no existing file
// is replaced. Leftovers of a killed program are recognised by their name, and folders also by a marker inside, which
// their creator keeps locked while it runs.

/// The parts of a temporary name.
struct TemporaryName {
  std::string base;    ///< the final name
  std::string ending;  ///< "tmp": being written; other endings have other users
};

/// A new random name next to `path`: PATH.hone-<8 hex digits>.ENDING. Creates nothing.
std::filesystem::path temporary_beside(const std::filesystem::path& path, std::string_view ending = "tmp");
/// Nothing if `name` is not from temporary_beside.
std::optional<TemporaryName> parse_temporary(std::string_view name);

/// A folder with a temporary name, which is removed with this object unless it has been renamed.
class TemporaryFolder {
 public:
  /// Creates PATH.hone-XXXXXXXX.tmp with the marker inside. Throws UserError if that fails.
  explicit TemporaryFolder(const std::filesystem::path& path);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Renames the folder to `name`, which must not exist or be an empty folder, removes the marker and syncs the parent.
  /// The caller must sync the contents first (sync_tree). Throws UserError if `name` exists.
  void rename_to(const std::filesystem::path& name);

 private:
  std::filesystem::path path_;
  int marker_ = -1;
};

/// The name of the marker: a folder that contains it is from this program, and may be removed when its creator has
/// ended.
inline constexpr const char* kTemporaryMarker = ".hone-temporary";

/// Removes a folder with a marker and its contents, the marker last: what a failure or a kill leaves is still
/// recognised. Returns whether nothing is left.
bool remove_marked(const std::filesystem::path& folder);

/// Writes the marker into a folder before it gets a temporary name.
void mark_temporary(const std::filesystem::path& folder);

/// Removes leftovers of killed programs in `folder`: temporary folders (ending "tmp", creator ended) that have the
/// marker or are empty, and, with `alone` (no other process writes there now), temporary files. With `base` only those
/// with that final name. Ignores those that cannot be removed.
void remove_leftovers(const std::filesystem::path& folder, bool alone, std::string_view base = {});

}  // namespace hone
