#include "data/formats/row_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/readers/raw_row.h"

namespace hone {

std::string_view kind_of(const Json& value) {
  if (value.is_array()) return "array";
  if (value.is_string()) return "text";
  if (value.is_boolean()) return "true or false";
  if (value.is_number()) return "number";
  return value.is_object() ? "object" : "null";
}

const Json* RowColumns::find(std::string_view name) const {
  const std::string* mapped = mapping_.column(name);
  if (!mapped && (mapping_.takes(name) || mapping_.ignores(name))) return nullptr;
  const auto found = row_.find(mapped ? std::string_view(*mapped) : name);
  if (found == row_.end()) return nullptr;
  read_.push_back(found.key());
  if (mapped) mapping_.mark_found(name);
  return found->is_null() ? nullptr : &*found;
}

const Json& RowColumns::at(std::string_view name) const {
  if (const Json* column = find(name)) return *column;
  const std::string* mapped = mapping_.column(name);
  const std::string column = label(name);
  const std::string fix =
      fmt::format("the row has the columns: {}.{}", column_names(row_), nearest_column(row_, column));
  const bool is_null = row_.contains(column) && (mapped || (!mapping_.takes(name) && !mapping_.ignores(name)));
  const char* state = is_null ? "null" : "missing";
  if (mapped) fail(fmt::format("the column '{}' is {}, which column_mapping reads as {}", column, state, name), fix);
  fail(fmt::format("the column '{}' is {}, which the format {} needs", name, state, format_), fix);
}

const std::string& RowColumns::text_at(std::string_view name) const {
  const Json& column = at(name);
  if (!column.is_string()) fail_type(label(name), "text", column);
  return column.get_ref<const std::string&>();
}

std::string RowColumns::text_or_empty(std::string_view name) const { return find(name) ? text_at(name) : ""; }

Json RowColumns::list_of(std::string_view name, const Json& column, std::string_view expected) const {
  if (column.is_array()) return column;
  if (!column.is_string()) fail_type(name, expected, column);
  const auto& text = column.get_ref<const std::string&>();
  Json parsed = nested_too_deep(text) ? Json() : Json::parse(text, nullptr, false);
  if (parsed.is_array()) return parsed;
  fail(fmt::format("'{}' is text that is not a JSON list, but should be {}", name, expected),
       fmt::format("write the list itself, or as JSON; see the format {} in docs/data.md", format_));
}

std::vector<std::string> RowColumns::unread() const {
  constexpr size_t kMost = 64;  // a table may have 100,000 columns
  std::vector<std::string> names;
  for (const std::string& column : mapping_.ignored()) {
    if (row_.contains(column)) names.push_back(column);
  }
  const size_t most = names.size() + kMost;
  for (const auto& [key, value] : row_.items()) {
    if (names.size() == most) break;
    if (mapping_.ignores(key) || std::find(read_.begin(), read_.end(), key) != read_.end()) continue;
    names.push_back(key);
  }
  return names;
}

std::string RowColumns::label(std::string_view name) const {
  const std::string* mapped = mapping_.column(name);
  return mapped ? *mapped : std::string(name);
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

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string nearest_column(const Json& row, std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [key, value] : row.items()) {
    if (key == name) continue;
    if (lower_case(key) == lower_case(name)) return fmt::format(" Did you mean '{}'?", key);
    names.push_back(key);
  }
  return did_you_mean(name, names);
}

}  // namespace hone
