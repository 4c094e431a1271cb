// Reads and writes rows of CSV (RFC 4180) and TSV files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/readers/byte_reader.h"
#include "data/readers/raw_row.h"

namespace hone {

/// Parses a delimiter: one character, or "tab"; nothing for "". Throws UserError at `where` for anything else.
std::optional<char> delimiter_of(const std::string& name, const std::string& where);

/// Reads the records of a `.csv` or `.tsv` (tab) file. If the header of a .csv file has no comma outside quotes, its
/// delimiter is the semicolon or else the tab. The first record is the header: the names of the columns, without white
/// space around them; columns without a name are not read. A quoted field may contain delimiters, line ends and doubled
/// quotes. Lines end with CRLF or LF; blank lines are skipped. Source: RFC 4180; in TSV, additionally, a quote inside
/// an unquoted field is text.
class CsvReader : public RowReader {
 public:
  /// Throws UserError if the file is not readable, or if the header has a name twice, no name, or another delimiter.
  explicit CsvReader(const std::string& file, std::optional<char> delimiter = {}, size_t max_row_bytes = kMaxRowBytes);

  /// Throws UserError with file:line for an unclosed quote, text after a closing quote, a quote inside an unquoted
  /// field of CSV, a lone carriage return, and a row over max_row_bytes.
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

/// The fields of a record, without quotes.
std::vector<std::string> split_record(std::string_view record, char delimiter);

/// A CSV row as an object of texts. Throws UserError if it has more or fewer fields than the header.
Json parse_csv_row(const RawRow& row);

/// Writes one record with a line feed at its end (RFC 4180 has CRLF). Quotes a field with a comma, a quote, a line
/// break, or white space at an end.
std::string csv_record(const std::vector<std::string>& fields);

}  // namespace hone
