// Rows of files before parsing: readers split a file into rows; parse_row() parses each separately.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

/// The largest row; a longer one is an error, so a malformed file cannot use all memory.
inline constexpr size_t kMaxRowBytes = size_t{256} << 20;

/// The first record of a CSV file.
struct CsvHeader {
  std::vector<std::string> names;  ///< the columns' names; a column without one has "" and is not read
  char delimiter = ',';
};

enum class RowSyntax {
  kJson,
  kCsv,
  kParquet,  ///< the row as JSON
  kText,     ///< a whole file of text
};

/// The text of one row before parsing.
struct RawRow {
  std::string text;
  std::string file;
  int64_t line = 0;  ///< where its first character is, from 1; for Parquet the number of the row, from 1
  RowSyntax syntax = RowSyntax::kJson;
  std::shared_ptr<const CsvHeader> header = {};  ///< for kCsv

  /// "file:line"; for Parquet "file, row 7", for kText from line 1 only the file.
  std::string where() const;
};

/// Splits one file into rows. Memory: one row and a buffer.
class RowReader {
 public:
  virtual ~RowReader() = default;

  /// Reads the next row; returns false at the end. Throws UserError with file:line.
  virtual bool next(RawRow& row) = 0;
  virtual int64_t bytes_read() const = 0;
};

/// Parses a row: an object whose keys have the order of the file. A CSV row has its fields as text under the names of
/// the header, a text is {"text": …}. Throws UserError with file:line for ill-formed UTF-8, malformed JSON (with the
/// column), nesting over 256 levels, a value that is not an object, and a CSV row with more or fewer fields than the
/// header.
Json parse_row(const RawRow& row);

/// Whether JSON text nests lists and objects deeper than 256 levels: copying and printing it would recurse as deep.
bool nested_too_deep(std::string_view text);

}  // namespace hone
