#include "data/row_columns.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "core/error.h"

namespace hone {

std::string_view kind_of(const Json& value) {
  if (value.is_array()) return "array";
  if (value.is_string()) return "text";
  if (value.is_boolean()) return "true or false";
  if (value.is_number()) return "number";
  return value.is_object() ? "object" : "null";
}

const Json* RowColumns::find(std::string_view name) const {
  const auto found = row_.find(name);
  return found == row_.end() || found->is_null() ? nullptr : &*found;
}

const Json& RowColumns::at(std::string_view name) const {
  if (const Json* column = find(name)) return *column;
  const bool is_null = row_.contains(name);
  if (format_ == "messages") refuse_other_formats(row_, where_);
  std::vector<std::string> names;
  for (const auto& [key, value] : row_.items()) {
    if (key != name) names.push_back(key);
  }
  fail(fmt::format("the column '{}' is {}, which the format {} needs", name, is_null ? "null" : "missing", format_),
       fmt::format("the row has the columns: {}.{}", column_names(row_), did_you_mean(name, names)));
}

void RowColumns::fail_type(std::string_view column, std::string_view expected, const Json& found) const {
  const std::string_view kind = kind_of(found);
  fail(fmt::format("'{}' is {}{}, not {}", column, kind == "array" || kind == "object" ? "an " : "",
                   kind == "number" ? "a number" : kind, expected),
       fmt::format("see the format {} in docs/data.md", format_));
}

void RowColumns::fail(const std::string& what, const std::string& fix) const { throw UserError(what, where_, fix); }

std::string column_names(const Json& row) {
  std::string names;
  constexpr size_t kMost = 20;
  size_t count = 0;
  for (const auto& [key, value] : row.items()) {
    if (++count > kMost) return names + ", …";
    names += (names.empty() ? "" : ", ") + key;
  }
  return names.empty() ? "none" : names;
}

void refuse_other_formats(const Json& row, const std::string& where) {
  struct Other {
    std::string_view column, second, format;
  };
  static constexpr std::array<Other, 6> kOthers = {{{"conversations", "", "sharegpt"},
                                                    {"conversation", "", "sharegpt"},
                                                    {"instruction", "output", "alpaca"},
                                                    {"chosen", "rejected", "preference pairs"},
                                                    {"question", "answer", "question and answer"},
                                                    {"text", "", "text"}}};
  for (const Other& other : kOthers) {
    if (!row.contains(other.column) || (!other.second.empty() && !row.contains(other.second))) continue;
    throw UserError(
        fmt::format("the columns ({}) are those of the format '{}', which is not read in this version",
                    column_names(row), other.format),
        where,
        R"(convert the rows to {"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}]})");
  }
}

}  // namespace hone
