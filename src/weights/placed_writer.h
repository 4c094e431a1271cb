// A safetensors file whose tensors are written at their places, by several threads and in any order, and read again
// before the file gets its name.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weights/safetensors.h"

namespace hone {

/// Writes one file under a temporary name.
class PlacedWriter {
 public:
  /// Opens a temporary file beside `path`, as long as the whole file will be, and writes the header. UserError if the
  /// folder is not writable.
  PlacedWriter(std::filesystem::path path, std::vector<SafetensorsWriter::Announced> tensors);
  ~PlacedWriter();
  PlacedWriter(const PlacedWriter&) = delete;
  PlacedWriter& operator=(const PlacedWriter&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }

  /// Bytes of tensor number `tensor` from `offset` on; the disk begins with them at once. UserError if the disk is
  /// full or fails. Thread-safe.
  void write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  /// The same bytes as the file has them now, found by the tensor's name in the file's own header. Thread-safe.
  void read(size_t tensor, uint64_t offset, std::span<std::byte> bytes) const;
  /// Waits until what has been written is on the disk. UserError if the disk cannot hold it. May run beside read().
  void sync();
  /// Gives the synced file its name. The checksum of the file, whose tensors' bytes sum up to `tensors`.
  FileChecksum finish(uint32_t tensors);

 private:
  void put(uint64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  bool synced_ = false;
  uint64_t header_bytes_ = 0, file_bytes_ = 0;
  uint32_t header_crc_ = 0;
  std::vector<uint64_t> begins_;  // in the file, of the tensors
  std::optional<SafetensorsFile> written_;
  std::vector<const SafetensorsEntry*> entries_;
};

}  // namespace hone
