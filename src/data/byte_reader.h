// The bytes of a file, one at a time, with the number of the current line; and a file of plain text as a row.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/raw_row.h"
#include "data/unpacked_file.h"

namespace hone {

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
