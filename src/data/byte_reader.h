// The bytes of a file, one at a time, with the number of the current line.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace hone {

/// Reads through a buffer of fixed size.
class ByteReader {
 public:
  /// Throws UserError if the file cannot be read or is UTF-16; a byte order mark of UTF-8 is skipped.
  explicit ByteReader(const std::string& path);

  /// The next byte, or -1 at the end.
  int peek() { return position_ < buffer_.size() || fill() ? static_cast<unsigned char>(buffer_[position_]) : -1; }
  int get();
  int64_t line() const { return line_; }
  int64_t bytes_read() const { return loaded_ - static_cast<int64_t>(buffer_.size() - position_); }

 private:
  bool fill();

  std::string path_;
  std::ifstream in_;
  std::string buffer_;
  size_t position_ = 0;
  int64_t line_ = 1, loaded_ = 0;
};

/// A space, a tab, or the end of a line.
inline bool is_blank(int byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }

}  // namespace hone
