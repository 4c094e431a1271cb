// UnpackedFile: the bytes of a file, unpacked where its name says that it is compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/file_bytes.h"

namespace hone {

/// `path` without .gz or .zst at its end: what the file is once it is unpacked.
std::string_view without_compression(std::string_view path);

class UnpackedFile {
 public:
  virtual ~UnpackedFile() = default;

  /// Opens a file; one whose name ends in .gz (gzip, of one member or several) or .zst (Zstandard, of one frame or
  /// several) is unpacked as it is read. Throws UserError if it cannot be read or is not what `source` allows. Of a
  /// pipe at most kMostTypedBytes are read.
  static std::unique_ptr<UnpackedFile> open(const std::string& path, FileSource source = FileSource::kRegular);

  /// Up to `size` bytes; 0 at the end alone. Throws UserError: a read error, data that are not of this compression or
  /// are damaged, an end in the middle.
  virtual size_t read(char* bytes, size_t size) = 0;
  /// Bytes of the file that were taken so far, as they lie on the disk.
  virtual int64_t bytes_read() const = 0;
};

}  // namespace hone
