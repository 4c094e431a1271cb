// PlacedFile: a safetensors file of known size that several threads and processes write at their positions, in any
// order.
//
// One process creates it with its size and header; the others open it to write only. Write-only matters on NFS: a
// client that may also read reads a page before it writes a part of it, and could write back the whole page over what
// another host has written meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/files/descriptor.h"
#include "weights/safetensors.h"

namespace hone {

/// The offsets of the tensors in a file: they follow the header without gaps.
class PlacedLayout {
 public:
  explicit PlacedLayout(std::span<const SafetensorsWriter::Announced> tensors);

  const std::string& header() const { return header_; }
  uint32_t header_crc() const { return header_crc_; }
  /// Bytes of the whole file.
  uint64_t bytes() const { return ends_.empty() ? header_.size() : ends_.back(); }
  /// Offsets in the file of a tensor's first byte, and of the byte after its last.
  uint64_t offset(size_t tensor) const { return tensor == 0 ? header_.size() : ends_[tensor - 1]; }
  uint64_t end(size_t tensor) const { return ends_[tensor]; }

 private:
  std::string header_;
  uint32_t header_crc_;
  std::vector<uint64_t> ends_;
};

class PlacedFile {
 public:
  /// Creates the file with its final size, and writes the header. Errors name `shown`. UserError if `path` is taken, or
  /// the folder is not writable.
  static PlacedFile create(const std::filesystem::path& path, const PlacedLayout& layout,
                           const std::filesystem::path& shown);
  /// Opens a file that another process has created. UserError if it is not there.
  static PlacedFile open(const std::filesystem::path& path);
  /// Writes bytes at `offset`. UserError if the disk is full or fails. Thread-safe.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  /// Starts writing these bytes to the disk, so that sync() waits less. Where the file system does not support it, only
  /// sync() takes longer. Thread-safe.
  void start_writing_back(uint64_t offset, uint64_t bytes);
  /// Waits until all bytes that this process has written are on the disk. UserError if the disk fails.
  void sync();

 private:
  PlacedFile(Descriptor file, std::filesystem::path shown) : file_(std::move(file)), shown_(std::move(shown)) {}

  Descriptor file_;
  std::filesystem::path shown_;
};

}  // namespace hone
