// Bytes of a file, read from anywhere in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace hone {

class FileBytes {
 public:
  /// UserError if the file cannot be read.
  explicit FileBytes(std::filesystem::path path);
  ~FileBytes();
  FileBytes(FileBytes&& other) noexcept;
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }

  /// Bytes [offset, offset + count); UserError where the file ends before. Thread-safe.
  void read(uint64_t offset, void* destination, uint64_t count) const;
  std::string read(uint64_t offset, uint64_t count) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace hone
