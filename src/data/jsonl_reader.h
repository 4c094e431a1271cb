// Rows of JSON from files, one at a time: what one row holds never touches another.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace hone {

/// The largest row that is read; a longer one is an error, so that a broken file cannot take all memory.
inline constexpr size_t kMaxRowBytes = size_t{256} << 20;

/// The text of one row, not parsed yet.
struct RawRow {
  std::string text;
  std::string file;
  int64_t line = 0;  ///< of its first character, from 1

  std::string where() const;  ///< "file:line"
};

/// The bytes of a file through a buffer of fixed size, with the number of the current line.
class ByteReader {
 public:
  /// Throws UserError if the file cannot be read; a byte order mark of UTF-8 is skipped.
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

/// Reads the rows of a JSONL file (one object a line; blank lines are skipped), of a `.json` file that is JSONL or one
/// array of objects, or of all `.jsonl` files of a folder in the order of their names. Memory: one row and a buffer.
class JsonlReader {
 public:
  /// Throws UserError: nothing there, not readable, a kind of file that is not read, a folder without .jsonl files.
  explicit JsonlReader(const std::string& path, size_t max_row_bytes = kMaxRowBytes);

  /// The next row, or false at the end. Throws UserError with file:line: a row over max_row_bytes, an array that is
  /// not closed, a read error.
  bool next(RawRow& row);

  int64_t bytes_read() const { return bytes_before_ + open_->bytes_read(); }
  int64_t bytes_total() const { return bytes_total_; }

 private:
  enum class Layout { kLines, kArray };

  void open_next();
  bool next_line(RawRow& row);
  bool next_element(RawRow& row);
  void append(RawRow& row, int byte) const;

  std::vector<std::string> files_;
  size_t next_file_ = 0;
  size_t max_row_bytes_;
  std::optional<ByteReader> open_;  // the file being read
  Layout layout_ = Layout::kLines;
  bool array_closed_ = false, first_element_ = true;
  int64_t bytes_before_ = 0, bytes_total_ = 0;
};

/// Parses a row by itself; keys keep their order. Throws UserError with file:line: ill-formed UTF-8, broken JSON (with
/// the column), nesting over 256 levels, a value that is not an object.
Json parse_row(const RawRow& row);

/// Whether JSON text nests lists and objects deeper than 256 levels: copying and printing them would recurse as deep.
bool nested_too_deep(std::string_view text);

}  // namespace hone
