// Bytes of files: of models, adapters, checkpoints, tokenizers, templates and data, which are regular files, and of
// what a user typed, which may be a pipe. Whatever a path leads to, opening it never waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace hone {

/// What a path may lead to. Links are followed: every file of a Hugging Face cache is one.
enum class FileSource {
  kRegular,   ///< a regular file alone
  kAlsoPipe,  ///< also a pipe or a terminal: a configuration or input that the user typed (/dev/stdin, <(command))
};

/// A file opened for reading.
class OpenFile {
 public:
  /// UserError for a path that cannot be opened, or leads to a folder, a device, a socket or (kRegular) a pipe.
  explicit OpenFile(std::filesystem::path path, FileSource source = FileSource::kRegular);
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  bool regular() const { return regular_; }
  /// Bytes of a regular file when it was opened.
  uint64_t size() const { return size_; }

  /// The next bytes, at most `count`; fewer only at the end. Waits for what somebody writes to a pipe, and a few
  /// seconds for somebody to open it. UserError if reading fails.
  size_t read_next(void* destination, size_t count);

 private:
  [[noreturn]] void unreadable(const std::string& reason) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool regular_ = true, pipe_ = false;
  uint64_t size_ = 0;
};

/// A regular file, read from anywhere in it.
class FileBytes {
 public:
  /// UserError if the file cannot be read, or is not a regular one.
  explicit FileBytes(std::filesystem::path path) : file_(std::move(path)) {}

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t size() const { return file_.size(); }

  /// Bytes [offset, offset + count); UserError where the file ends before. Thread-safe.
  void read(uint64_t offset, void* destination, uint64_t count) const;
  std::string read(uint64_t offset, uint64_t count) const;
  /// Asks the system to read these bytes beforehand; nothing if it cannot. Thread-safe.
  void prefetch(uint64_t offset, uint64_t count) const;

 private:
  OpenFile file_;
};

/// The largest text that belongs to a model: a configuration, an index, a template.
inline constexpr uint64_t kMostTextBytes = uint64_t{64} << 20;

/// The largest input that a user pipes.
inline constexpr uint64_t kMostTypedBytes = uint64_t{1} << 30;

/// All bytes of a file. UserError if it cannot be read, is not what `source` allows, or has more than `most` bytes.
std::string read_whole_file(const std::filesystem::path& path, uint64_t most = kMostTextBytes,
                            FileSource source = FileSource::kRegular);

/// The same; nothing where no file has this name.
std::optional<std::string> read_whole_file_if_there(const std::filesystem::path& path, uint64_t most = kMostTextBytes);

/// UserError if `path` is not a regular file, before it is read.
inline void require_regular_file(const std::filesystem::path& path) { OpenFile file(path); }

}  // namespace hone
