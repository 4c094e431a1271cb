// Reads rows of JSON from a file: one object per line, an array of objects, or an object that contains such an array.
#pragma once

#include <string>
#include <vector>

#include "data/readers/byte_reader.h"
#include "data/readers/raw_row.h"

namespace hone {

/// The top level of a file that is one JSON object.
struct JsonOutline {
  bool single_object = false;       ///< the file is one object and nothing else
  std::vector<std::string> tables;  ///< keys whose values are lists of objects
};

/// Scans a `.json` file that begins with `{`. single_object is false for anything but one well-formed object.
JsonOutline outline_of(const std::string& file);

/// Reads the rows of a JSONL file (one object per line; blank lines are skipped), or of a `.json` file with
///   - JSONL,
///   - one array of objects,
///   - one object with exactly one list of objects that is not a column of a row: its elements are the rows; with
///     several such lists, `table` selects one,
///   - any other object, which is the only row.
class JsonlReader : public RowReader {
 public:
  struct Options {
    size_t max_row_bytes = kMaxRowBytes;
    std::string table = {};                 ///< the list to read from an object with several
    std::vector<std::string> columns = {};  ///< additional names of lists that belong to a row
    FileSource source = FileSource::kRegular;
  };

  /// Throws UserError if the file does not exist or is not readable, if it has several lists of objects and no table is
  /// set, and if it has no list of that name.
  explicit JsonlReader(const std::string& file) : JsonlReader(file, Options()) {}
  JsonlReader(const std::string& file, const Options& options);

  /// Throws UserError with file:line for a row over max_row_bytes, an unclosed array, and a read error.
  bool next(RawRow& row) override;
  int64_t bytes_read() const override { return in_.bytes_read(); }

 private:
  enum class Layout { kLines, kArray, kTable, kOneRow };

  void choose_layout();
  void choose_table(const JsonOutline& outline);
  void skip_to_table();
  bool next_line(RawRow& row);
  bool next_element(RawRow& row);
  bool whole_file(RawRow& row);
  void append(RawRow& row, int byte) const;

  std::string file_;
  Options options_;
  ByteReader in_;
  Layout layout_ = Layout::kLines;
  bool array_closed_ = false, first_element_ = true, done_ = false;
};

}  // namespace hone
