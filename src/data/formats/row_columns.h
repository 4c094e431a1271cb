// Access to the columns of a row, with helpful errors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"
#include "data/formats/column_mapping.h"

namespace hone {

/// The largest loss weight in data.
inline constexpr double kMaxWeight = 1e6;

/// "array", "text", "number", "true or false", "object" or "null".
std::string_view kind_of(const Json& value);

/// The columns of one row under Hone's names. The row and the mapping must outlive this.
class RowColumns {
 public:
  /// Errors contain `format` and `where` (file:line).
  RowColumns(const Json& row, std::string_view format, const std::string& where,
             const ColumnMapping& mapping = ColumnMapping::none())
      : row_(row), format_(format), where_(where), mapping_(mapping) {}

  /// A column; null if it is absent, null, ignored by the mapping, or mapped to another name.
  const Json* find(std::string_view name) const;

  /// A required column. Throws UserError with the columns found and the nearest name.
  const Json& at(std::string_view name) const;

  /// The text of a required column. Throws UserError if it is not text.
  const std::string& text_at(std::string_view name) const;
  /// The text of a column; "" if it is absent or null. Throws UserError if it is not text.
  std::string text_or_empty(std::string_view name) const;
  /// The list in a column that is not null, as a list or as JSON text. Throws UserError if it is not a list.
  Json list_of(std::string_view name, const Json& column, std::string_view expected) const;

  /// The columns of the row that find() was not called for: all ignored ones, and up to 64 others.
  std::vector<std::string> unread() const;

  /// The column's name in the data.
  std::string label(std::string_view name) const;

  /// Throws UserError: `column` must be `expected`.
  [[noreturn]] void fail_type(std::string_view column, std::string_view expected, const Json& found) const;
  [[noreturn]] void fail(const std::string& what, const std::string& fix) const;

  const Json& row() const { return row_; }
  const std::string& where() const { return where_; }
  const ColumnMapping& mapping() const { return mapping_; }

 private:
  const Json& row_;
  std::string_view format_;
  const std::string& where_;
  const ColumnMapping& mapping_;
  mutable std::vector<std::string_view> read_;  // names in the data
};

/// The names of the columns of `row`: "id, text", or "none".
std::string column_names(const Json& row);

/// `text` with the letters A to Z in lower case.
std::string lower_case(std::string_view text);

/// " Did you mean 'prompt'?" with the nearest column name of `row`, ignoring case, or "".
std::string nearest_column(const Json& row, std::string_view name);

}  // namespace hone
