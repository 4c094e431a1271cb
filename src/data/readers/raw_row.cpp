#include "data/readers/raw_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "data/readers/csv_reader.h"
#include "text/utf8.h"

namespace hone {

namespace {

constexpr int kMaxDepth = 256;
constexpr std::string_view kOneObjectALine =
    "write one JSON object on each line; a file that is one array of objects must be named .json";

/// Removes the first part of "parse error at line 1, column 5: syntax error while parsing value - ...", and shortens
/// the rest.
std::string reason_of(std::string message) {
  const size_t bracket = message.find("] ");
  if (bracket != std::string::npos) message.erase(0, bracket + 2);
  const size_t column = message.find("column ");
  if (message.starts_with("parse error at ") && column != std::string::npos) {
    message.erase(0, std::min(message.size(), message.find(": ", column) + 2));
  }
  constexpr size_t kLongest = 200;
  if (message.size() > kLongest) message = repair_utf8(message.substr(0, kLongest)) + "…";
  return message;
}

/// The location of byte `at` of a row.
struct Place {
  std::string where;  ///< file:line
  size_t column;      ///< number of bytes before it on its line
};

Place place_of(const RawRow& row, size_t at) {
  const std::string_view before = std::string_view(row.text).substr(0, std::min(at, row.text.size()));
  const size_t line_begin = before.rfind('\n');
  const size_t column = line_begin == std::string_view::npos ? before.size() : before.size() - line_begin - 1;
  if (row.syntax == RowSyntax::kParquet) return {row.where(), column};
  return {fmt::format("{}:{}", row.file, row.line + std::count(before.begin(), before.end(), '\n')), column};
}

/// The error of malformed JSON at byte `at` of the row.
UserError broken_json(const RawRow& row, size_t at, const std::string& reason) {
  const Place place = place_of(row, at);
  return UserError(fmt::format("broken JSON at column {}: {}", std::max<size_t>(place.column, 1), reason), place.where,
                   std::string(kOneObjectALine));
}

/// The code of \\uXXXX at `at`; -1 for anything else.
int escaped_unit(std::string_view text, size_t at) {
  if (text.size() < at + 6 || text[at] != '\\' || text[at + 1] != 'u') return -1;
  int unit = 0;
  const auto [end, error] = std::from_chars(text.data() + at + 2, text.data() + at + 6, unit, 16);
  return error == std::errc() && end == text.data() + at + 6 ? unit : -1;
}

/// Python's json module writes and reads what JSON does not have: NaN and infinities, which become null here, and
/// halves of surrogate pairs (emojis cut in two), which become U+FFFD. Nothing if the row has none of them.
std::optional<std::string> without_python_extras(std::string_view text) {
  std::string plain;
  bool in_string = false, changed = false;
  for (size_t i = 0; i < text.size();) {
    if (in_string && text[i] == '\\') {
      const int unit = escaped_unit(text, i), next = escaped_unit(text, i + 6);
      const bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
      const bool pair = high && next >= 0xDC00 && next < 0xE000;
      const size_t length = pair ? 12 : unit >= 0 ? 6 : 2;
      const bool lone = low || (high && !pair);
      plain += lone ? std::string_view("\\ufffd") : text.substr(i, length);
      changed |= lone;
      i += length;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    std::string_view word;
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
      if (!in_string && text.substr(i).starts_with(name)) word = name;
    }
    plain += word.empty() ? text.substr(i, 1) : std::string_view("null");
    changed |= !word.empty();
    i += std::max<size_t>(word.size(), 1);
  }
  return changed ? std::optional(std::move(plain)) : std::nullopt;
}

Json parse_json_row(const RawRow& row) {
  if (nested_too_deep(row.text)) {
    throw UserError(fmt::format("the JSON is nested deeper than {} levels", kMaxDepth), row.where(),
                    "flatten the row, or remove it");
  }
  if (takes_much_memory(row.text)) {
    throw UserError("the row has more lists and objects than fit into memory", row.where(), "remove the row");
  }
  Json json;
  try {
    json = Json::parse(row.text, nullptr, false);
    if (json.is_discarded()) {
      const std::optional<std::string> plain = without_python_extras(row.text);
      json = Json::parse(plain ? *plain : row.text);
    }
  } catch (const Json::parse_error& error) {
    throw broken_json(row, error.byte, reason_of(error.what()));
  } catch (const Json::exception& error) {
    throw broken_json(row, 0, reason_of(error.what()));
  }
  if (!json.is_object()) {
    throw UserError(fmt::format("the row is a JSON {}, not an object", json.type_name()), row.where(),
                    std::string(kOneObjectALine));
  }
  return json;
}

}  // namespace

bool nested_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

std::string RawRow::where() const {
  if (syntax == RowSyntax::kText && line <= 1) return file;
  return fmt::format("{}{}{}", file, syntax == RowSyntax::kParquet ? ", row " : ":", line);
}

Json parse_row(const RawRow& row) {
  const size_t valid = valid_utf8_prefix(row.text);
  if (valid != row.text.size()) {
    throw UserError(fmt::format("byte {} of the row is not UTF-8", valid + 1), place_of(row, valid).where,
                    "save the file as UTF-8, or repair the row");
  }
  switch (row.syntax) {
    case RowSyntax::kJson:
    case RowSyntax::kParquet:
      return parse_json_row(row);
    case RowSyntax::kCsv:
      return parse_csv_row(row);
    case RowSyntax::kText:
      break;
  }
  return Json{{"text", row.text}};
}

}  // namespace hone
