// Reads bytes of files: models, adapters, checkpoints, tokenizers, templates and data, which are regular files, and
// input of the user, which may be a pipe. Opening a path never blocks, whatever its type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace hone {

/// The allowed types of a file. Links are followed: every file of a Hugging Face cache is a link.
enum class FileSource {
  kRegular,   ///< only a regular file
  kAlsoPipe,  ///< also a pipe or a terminal: a configuration or input of the user (/dev/stdin, <(command))
};

/// A file opened for reading.
class OpenFile {
 public:
  /// Throws UserError for a path that cannot be opened, or is a folder, a device, a socket or (kRegular) a pipe.
  explicit OpenFile(std::filesystem::path path, FileSource source = FileSource::kRegular);
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  bool regular() const { return regular_; }
  /// Size of a regular file in bytes when it was opened.
  uint64_t size() const { return size_; }
  /// UserError if a regular file has been written to since it was opened: another size or time of modification.
  void require_unchanged() const;

  /// Reads at most `count` bytes; fewer only at the end. Waits for the writer of a pipe, and a few seconds for one to
  /// open it. Throws UserError if reading fails.
  size_t read_next(void* destination, size_t count);

 private:
  [[noreturn]] void unreadable(const std::string& reason) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool regular_ = true, pipe_ = false;
  uint64_t size_ = 0;
  int64_t modified_ = 0;  // nanoseconds since 1970
};

/// A regular file with random access.
class FileBytes {
 public:
  /// Throws UserError if the file cannot be read, or is not a regular file.
  explicit FileBytes(std::filesystem::path path) : file_(std::move(path)) {}

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t size() const { return file_.size(); }

  /// Reads bytes [offset, offset + count); throws UserError if the file is shorter. Thread-safe.
  void read(uint64_t offset, void* destination, uint64_t count) const;
  std::string read(uint64_t offset, uint64_t count) const;
  /// As OpenFile's. Thread-safe.
  void require_unchanged() const { file_.require_unchanged(); }
  /// Requests read-ahead of these bytes; does nothing if that is not supported. Thread-safe.
  void prefetch(uint64_t offset, uint64_t count) const;

 private:
  OpenFile file_;
};

/// The maximum size of a text file of a model: a configuration, an index, a template.
inline constexpr uint64_t kMostTextBytes = uint64_t{64} << 20;

/// The maximum input from a pipe.
inline constexpr uint64_t kMostTypedBytes = uint64_t{1} << 30;

/// All bytes of a file. Throws UserError if it cannot be read, if `source` does not allow it, or if it has more than
/// `most` bytes.
std::string read_whole_file(const std::filesystem::path& path, uint64_t most = kMostTextBytes,
                            FileSource source = FileSource::kRegular);

/// The same; nothing if no file has this name.
std::optional<std::string> read_whole_file_if_there(const std::filesystem::path& path, uint64_t most = kMostTextBytes);

/// Throws UserError if `path` is not a regular file; does not read it.
inline void require_regular_file(const std::filesystem::path& path) { OpenFile file(path); }

}  // namespace hone
