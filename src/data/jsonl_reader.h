// Rows of JSON from a file: one object a line, one array of objects, or one object that holds such an array.
#pragma once

#include <string>
#include <vector>

#include "data/byte_reader.h"
#include "data/raw_row.h"

namespace hone {

/// What a file that is one JSON object holds at its top.
struct JsonOutline {
  bool single_object = false;       ///< the file is one object and nothing else
  std::vector<std::string> tables;  ///< keys whose values are lists of objects
};

/// Walks over a `.json` file that begins with `{`. Of anything but one well-formed object single_object is false.
JsonOutline outline_of(const std::string& file);

/// Reads the rows of a JSONL file (one object a line; blank lines are skipped), or of a `.json` file that is
///   - JSONL,
///   - one array of objects,
///   - one object with exactly one list of objects in it that is not a column of a row, which are the rows; or with
///     several, of which `table` names one,
///   - any other object, which is the one row.
class JsonlReader : public RowReader {
 public:
  struct Options {
    size_t max_row_bytes = kMaxRowBytes;
    std::string table = {};                 ///< the list to read of an object with several
    std::vector<std::string> columns = {};  ///< further names of lists that belong to a row
    FileSource source = FileSource::kRegular;
  };

  /// Throws UserError: not there, not readable, several lists of objects and no table, no list of that name.
  explicit JsonlReader(const std::string& file) : JsonlReader(file, Options()) {}
  JsonlReader(const std::string& file, const Options& options);

  /// Throws UserError with file:line: a row over max_row_bytes, an array that is not closed, a read error.
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
