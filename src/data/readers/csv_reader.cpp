#include "data/readers/csv_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/utf8.h"

namespace hone {
namespace {

constexpr std::string_view kQuoting = "put the whole field into quotes, and double each quote inside it (RFC 4180)";

bool ends_line(int byte) { return byte == '\n' || byte == '\r'; }

std::string without_blanks(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_last_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

/// The delimiter of a .tsv file by its name, and of a .csv file the first of comma, semicolon and tab that its header
/// has outside quotes.
char recognised_delimiter(const std::string& file) {
  if (without_compression(file).ends_with(".tsv")) return '\t';
  ByteReader in(file);
  while (ends_line(in.peek())) in.get();
  bool semicolon = false, tab = false, quoted = false;
  for (int byte = in.get(); byte >= 0 && (quoted || !ends_line(byte)); byte = in.get()) {
    if (byte == '"') quoted = !quoted;
    if (quoted) continue;
    if (byte == ',') return ',';
    semicolon = semicolon || byte == ';';
    tab = tab || byte == '\t';
  }
  return semicolon ? ';' : tab ? '\t' : ',';
}

}  // namespace

std::optional<char> delimiter_of(const std::string& name, const std::string& where) {
  if (name.empty()) return std::nullopt;
  if (name == "tab" || name == "\\t") return '\t';
  const auto c = static_cast<unsigned char>(name[0]);
  const bool letter = std::isalnum(c) || c >= 0x80 || c == '"' || c == '\n' || c == '\r';
  if (name.size() == 1 && !letter) return name[0];
  throw UserError(fmt::format("delimiter is '{}', which is not a field separator", name), where,
                  "write one character, such as \";\" or \"|\", or tab");
}

CsvReader::CsvReader(const std::string& file, std::optional<char> delimiter, size_t max_row_bytes)
    : file_(file), max_row_bytes_(max_row_bytes), in_(file) {
  header_->delimiter = delimiter ? *delimiter : recognised_delimiter(file);
  read_header();
}

void CsvReader::read_header() {
  RawRow row;
  row.syntax = RowSyntax::kCsv;
  row.file = file_;
  if (!next_record(row)) return;
  if (valid_utf8_prefix(row.text) != row.text.size()) {
    throw UserError("the header is not UTF-8", row.where(), "save the file as UTF-8");
  }
  for (const std::string& name : split_record(row.text, header_->delimiter)) {
    header_->names.push_back(without_blanks(name));
  }
  const std::vector<std::string>& names = header_->names;
  std::set<std::string_view> known;
  for (const std::string& name : names) {
    if (name.empty() || known.insert(name).second) continue;
    throw UserError(fmt::format("the header names the column '{}' twice", name), row.where(),
                    "give each column a unique name");
  }
  for (const char other : {',', ';', '\t'}) {
    if (names.size() != 1 || names[0].find(other) == std::string::npos) continue;
    throw UserError(fmt::format("the header is one column: '{}'", names[0]), row.where(),
                    fmt::format("set the separator of the fields: delimiter: {} in the data set's entry",
                                other == '\t' ? "tab" : fmt::format("\"{}\"", other)));
  }
  if (std::all_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); })) {
    throw UserError("the header names no column", row.where(), "the first line of the file names the columns");
  }
}

void CsvReader::append(RawRow& row, int byte) const {
  if (row.text.size() == max_row_bytes_) {
    throw UserError(fmt::format("the row is longer than {} bytes", max_row_bytes_), row.where(),
                    "a quote may be missing");
  }
  row.text.push_back(static_cast<char>(byte));
}

/// Reads a field from its opening quote to its closing quote.
void CsvReader::read_quoted(RawRow& row) {
  const int64_t opened = in_.line();
  append(row, in_.get());
  while (true) {
    const int byte = in_.get();
    if (byte < 0) {
      throw UserError("a quote is opened here and never closed", fmt::format("{}:{}", file_, opened),
                      std::string(kQuoting));
    }
    append(row, byte);
    if (byte != '"') continue;
    if (in_.peek() != '"') break;
    append(row, in_.get());
  }
  if (in_.peek() < 0 || ends_line(in_.peek()) || in_.peek() == header_->delimiter) return;
  throw UserError("there is text after the closing quote of a field", fmt::format("{}:{}", file_, in_.line()),
                  std::string(kQuoting));
}

/// Reads the end of a line.
void CsvReader::end_line() {
  if (in_.get() != '\r' || in_.peek() < 0 || in_.peek() == '\n') return;
  throw UserError("there is a carriage return without a line feed after it", fmt::format("{}:{}", file_, in_.line()),
                  "end lines with a line feed, and put a field with a carriage return into quotes");
}

bool CsvReader::next_record(RawRow& row) {
  while (ends_line(in_.peek())) end_line();
  if (in_.peek() < 0) return false;
  row.line = in_.line();
  bool field_begins = true;
  while (in_.peek() >= 0 && !ends_line(in_.peek())) {
    const int byte = in_.peek();
    if (byte == '"' && field_begins) {
      read_quoted(row);
      field_begins = false;
      continue;
    }
    if (byte == '"' && header_->delimiter != '\t') {
      throw UserError("there is a quote inside a field that does not begin with one", row.where(),
                      std::string(kQuoting));
    }
    append(row, in_.get());
    field_begins = byte == header_->delimiter;
  }
  if (in_.peek() >= 0) end_line();
  return true;
}

bool CsvReader::next(RawRow& row) {
  row = {};
  row.file = file_;
  row.syntax = RowSyntax::kCsv;
  row.header = header_;
  return next_record(row);
}

std::vector<std::string> split_record(std::string_view record, char delimiter) {
  std::vector<std::string> fields(1);
  bool quoted = false, field_begins = true;
  for (size_t i = 0; i < record.size(); ++i) {
    const char c = record[i];
    if (quoted && c == '"') {
      if (i + 1 < record.size() && record[i + 1] == '"') {
        fields.back().push_back(record[++i]);
      } else {
        quoted = false;
      }
    } else if (!quoted && field_begins && c == '"') {
      quoted = true;
      field_begins = false;
    } else if (!quoted && c == delimiter) {
      fields.emplace_back();
      field_begins = true;
    } else {
      fields.back().push_back(c);
      field_begins = false;
    }
  }
  return fields;
}

Json parse_csv_row(const RawRow& row) {
  const std::vector<std::string>& names = row.header->names;
  std::vector<std::string> fields = split_record(row.text, row.header->delimiter);
  if (fields.size() != names.size()) {
    throw UserError(fmt::format("the row has {} fields, the header has {}", fields.size(), names.size()), row.where(),
                    fields.size() > names.size()
                        ? "a field with a delimiter in it must be in quotes"
                        : "write an empty field for each missing value; a line end inside a field must be in "
                          "quotes");
  }
  Json object = Json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i].empty()) object[names[i]] = std::move(fields[i]);
  }
  return object;
}

std::string csv_record(const std::vector<std::string>& fields) {
  std::string record;
  for (size_t i = 0; i < fields.size(); ++i) {
    const std::string& field = fields[i];
    if (i > 0) record += ',';
    const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
    // A record of one empty field would be a blank line, which readers skip.
    const bool quoted = field.find_first_of(",\"\r\n") != std::string::npos || (fields.size() == 1 && field.empty()) ||
                        (!field.empty() && (is_blank(field.front()) || is_blank(field.back())));
    if (!quoted) {
      record += field;
      continue;
    }
    record += '"';
    for (const char c : field) {
      if (c == '"') record += '"';
      record += c;
    }
    record += '"';
  }
  return record + "\n";
}

}  // namespace hone
