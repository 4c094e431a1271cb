// Access to the columns of a row, with errors that help.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "core/json.h"

namespace hone {

/// The largest factor of a loss that data may ask for.
inline constexpr double kMaxWeight = 1e6;

/// "array", "text", "number", "true or false", "object" or "null".
std::string_view kind_of(const Json& value);

/// The columns of one row, which outlives this.
class RowColumns {
 public:
  /// `format` and `where` (file:line) stand in errors.
  RowColumns(const Json& row, std::string_view format, const std::string& where)
      : row_(row), format_(format), where_(where) {}

  /// A column, or null if it is absent or null.
  const Json* find(std::string_view name) const;

  /// A column that the format needs. Throws UserError with the columns found and the nearest name.
  const Json& at(std::string_view name) const;

  /// Throws UserError: `column` should be `expected`.
  [[noreturn]] void fail_type(std::string_view column, std::string_view expected, const Json& found) const;
  [[noreturn]] void fail(const std::string& what, const std::string& fix) const;

  const std::string& where() const { return where_; }

 private:
  const Json& row_;
  std::string_view format_;
  const std::string& where_;
};

/// The names of the columns of `row`: "id, text", or "none".
std::string column_names(const Json& row);

/// Throws UserError if the columns of `row` are those of a format that this version does not read.
void refuse_other_formats(const Json& row, const std::string& where);

}  // namespace hone
