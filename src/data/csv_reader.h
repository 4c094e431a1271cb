// Rows of CSV (RFC 4180) and TSV files, read and written.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_reader.h"
#include "data/raw_row.h"

namespace hone {

/// What `delimiter` says: a character, or "tab"; nothing for "". Throws UserError at `where` for anything else.
std::optional<char> delimiter_of(const std::string& name, const std::string& where);

/// Reads the records of a `.csv` or `.tsv` (tab) file. A .csv file whose header has no comma outside of quotes may have
/// semicolons or else tabs in its place. The first record is the header: names of the columns,
/// without blanks around them; the columns of an unnamed header field are not read. A field may be in quotes, and then
/// hold delimiters, line ends and doubled quotes. Lines end with CRLF or LF; blank lines are skipped.
/// Source: RFC 4180; beyond it, in TSV a quote inside a field that does not begin with one is text.
class CsvReader : public RowReader {
 public:
  /// Throws UserError: not readable; a header with a name twice, or without any, or that another delimiter parts.
  explicit CsvReader(const std::string& file, std::optional<char> delimiter = {}, size_t max_row_bytes = kMaxRowBytes);

  /// Throws UserError with file:line: a quote that is not closed, text behind a closing quote, a quote inside a field
  /// of CSV that does not begin with one, a lone carriage return, a row over max_row_bytes.
  bool next(RawRow& row) override;
  int64_t bytes_read() const override { return in_.bytes_read(); }

  const std::vector<std::string>& columns() const { return header_->names; }

 private:
  void read_header();
  bool next_record(RawRow& row);
  void read_quoted(RawRow& row);
  void end_line();
  void append(RawRow& row, int byte) const;

  std::string file_;
  size_t max_row_bytes_;
  ByteReader in_;
  std::shared_ptr<CsvHeader> header_ = std::make_shared<CsvHeader>();
};

/// The fields of a record, quotes removed.
std::vector<std::string> split_record(std::string_view record, char delimiter);

/// A row of CSV as an object of texts. Throws UserError if it has more or fewer fields than the header.
Json parse_csv_row(const RawRow& row);

/// One record with its line end (CRLF is for the wire; files here end lines with a line feed). A field with a comma, a
/// quote, a line break, or white space at an end stands in quotes.
std::string csv_record(const std::vector<std::string>& fields);

}  // namespace hone
