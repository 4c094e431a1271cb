// The bytes of a file, of a compressed one what it unpacks to: one at a time, with the number of the current line, or
// as one row of plain text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/file_bytes.h"
#include "data/raw_row.h"

namespace hone {

// UnpackedFile: the bytes of a file, unpacked where its name says that it is compressed.

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

/// Reads through a buffer of fixed size; of a compressed file what it unpacks to.
class ByteReader {
 public:
  /// Throws UserError if the file cannot be read, is not what `source` allows, or is UTF-16; a byte order mark of UTF-8
  /// is skipped. Of a pipe at most kMostTypedBytes are read.
  explicit ByteReader(const std::string& path, FileSource source = FileSource::kRegular);

  /// The next byte, or -1 at the end.
  int peek() { return position_ < buffer_.size() || fill() ? static_cast<unsigned char>(buffer_[position_]) : -1; }
  int get();
  int64_t line() const { return line_; }
  /// Of the file as it lies on the disk; of a compressed one as far as it was unpacked.
  int64_t bytes_read() const;

 private:
  bool fill();

  bool compressed_;
  std::unique_ptr<UnpackedFile> in_;
  std::string buffer_;
  size_t position_ = 0;
  int64_t line_ = 1;
};

/// A space, a tab, or the end of a line.
inline bool is_blank(int byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

/// A `.txt` or `.md` file as one row {"text": …}; a file that is empty or only blanks has none.
class TextReader : public RowReader {
 public:
  explicit TextReader(const std::string& file) : file_(file), in_(file) {}

  /// Throws UserError: the file is larger than kMaxRowBytes, not readable.
  bool next(RawRow& row) override;
  int64_t bytes_read() const override { return in_.bytes_read(); }

 private:
  std::string file_;
  ByteReader in_;
};

}  // namespace hone
