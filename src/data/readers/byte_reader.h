// Readers of a file's bytes, decompressed if necessary: byte by byte with the current line number, or as one row of
// plain text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/files/file_bytes.h"
#include "data/readers/raw_row.h"

namespace hone {

// UnpackedFile: the bytes of a file, decompressed if its name has the extension of a compression.

/// `path` without .gz or .zst at its end: the name of the decompressed file.
std::string_view without_compression(std::string_view path);

class UnpackedFile {
 public:
  virtual ~UnpackedFile() = default;

  /// Opens a file. A file with the extension .gz (gzip, one or more members) or .zst (Zstandard, one or more frames) is
  /// decompressed while it is read; zero bytes after a gzip member are skipped. Throws UserError if it cannot be read
  /// or if `source` does not allow it. From a pipe at most kMostTypedBytes are read.
  static std::unique_ptr<UnpackedFile> open(const std::string& path, FileSource source = FileSource::kRegular);

  /// Reads up to `size` bytes; returns 0 only at the end. Throws UserError for a read error and for data that are
  /// damaged, truncated or of another compression.
  virtual size_t read(char* bytes, size_t size) = 0;
  /// Bytes read so far from the file on disk.
  virtual int64_t bytes_read() const = 0;
};

/// Reads through a buffer of fixed size, with decompression.
class ByteReader {
 public:
  /// Throws UserError if the file cannot be read, if `source` does not allow it, or if it is UTF-16. Skips a byte order
  /// mark of UTF-8. From a pipe at most kMostTypedBytes are read.
  explicit ByteReader(const std::string& path, FileSource source = FileSource::kRegular);

  /// The next byte, or -1 at the end.
  int peek() { return position_ < buffer_.size() || fill() ? static_cast<unsigned char>(buffer_[position_]) : -1; }
  int get();
  int64_t line() const { return line_; }
  /// Bytes read so far from the file on disk; for a compressed file those decompressed.
  int64_t bytes_read() const;

 private:
  bool fill();

  bool compressed_;
  std::unique_ptr<UnpackedFile> in_;
  std::string buffer_;
  size_t position_ = 0;
  int64_t line_ = 1;
};

/// Whether `byte` is a space, a tab, or the end of a line.
inline bool is_blank(int byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

/// Reads a `.txt` or `.md` file as one row {"text": …}; a file that is empty or blank has no row.
class TextReader : public RowReader {
 public:
  explicit TextReader(const std::string& file) : file_(file), in_(file) {}

  /// Throws UserError if the file is larger than kMaxRowBytes or not readable.
  bool next(RawRow& row) override;
  int64_t bytes_read() const override { return in_.bytes_read(); }

 private:
  std::string file_;
  ByteReader in_;
};

}  // namespace hone
