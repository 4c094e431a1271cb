// Rows as they stand in their files: readers part a file into rows, parsing makes each one an object by itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_fwd.h"

namespace hone {

/// The largest row that is read; a longer one is an error, so that a broken file cannot take all memory.
inline constexpr size_t kMaxRowBytes = size_t{256} << 20;

/// The first record of a CSV file.
struct CsvHeader {
  std::vector<std::string> names;  ///< of the columns; an unnamed column has "" and is not read
  char delimiter = ',';
};

enum class RowSyntax {
  kJson,
  kCsv,
  kParquet,  ///< the row as JSON
  kText,     ///< a whole file of text
};

/// The text of one row, not parsed yet.
struct RawRow {
  std::string text;
  std::string file;
  int64_t line = 0;  ///< of its first character, from 1; of Parquet the number of the row, from 1
  RowSyntax syntax = RowSyntax::kJson;
  std::shared_ptr<const CsvHeader> header = {};  ///< of kCsv

  /// "file:line"; "file, row 7" of Parquet, the file alone of kText that begins with it.
  std::string where() const;
};

/// Parts one file into rows. Memory: one row and a buffer.
class RowReader {
 public:
  virtual ~RowReader() = default;

  /// The next row, or false at the end. Throws UserError with file:line.
  virtual bool next(RawRow& row) = 0;
  virtual int64_t bytes_read() const = 0;
};

/// Parses a row by itself: an object whose keys have the order of the file. A row of CSV has its fields as text under
/// the names of the header, a text {"text": …}. Throws UserError with file:line: ill-formed UTF-8, broken JSON (with
/// the column), nesting over 256 levels, a value that is not an object; of CSV more or fewer fields than the header
/// has.
Json parse_row(const RawRow& row);

/// Whether JSON text nests lists and objects deeper than 256 levels: copying and printing them would recurse as deep.
bool nested_too_deep(std::string_view text);

}  // namespace hone
