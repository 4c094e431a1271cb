#include "text/row_template.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace hone {

namespace {

using jinja::Value;

Value value_of_column(const Json& json, int depth = 0) {
  if (depth >= jinja::kMaxValueDepth) throw UserError("a column is nested too deep for a template");
  if (json.is_string()) return Value::string(json.get<std::string>());
  if (json.is_boolean()) return Value::boolean(json.get<bool>());
  if (json.is_number_integer() && !json.is_number_unsigned()) return Value::integer(json.get<int64_t>());
  if (json.is_number_unsigned() && json.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) {
    return Value::integer(json.get<int64_t>());
  }
  if (json.is_number()) return Value::real(json.get<double>());
  if (json.is_array()) {
    std::vector<Value> items;
    for (const Json& item : json) items.push_back(value_of_column(item, depth + 1));
    return Value::list(std::move(items));
  }
  if (json.is_object()) {
    std::vector<std::pair<Value, Value>> entries;
    for (const auto& [name, item] : json.items()) {
      entries.emplace_back(Value::string(name), value_of_column(item, depth + 1));
    }
    return Value::dict(std::move(entries));
  }
  return Value::none();
}

/// The message of an error of a template, whose engine takes every template for a chat's.
std::string message_of(const UserError& error) {
  constexpr std::string_view kPrefix = "chat template: ";
  const std::string& message = error.message();
  return message.starts_with(kPrefix) ? message.substr(kPrefix.size()) : message;
}

}  // namespace

RowTemplate::RowTemplate(std::string_view source, std::string option)
    : option_(std::move(option)), ends_line_(source.ends_with('\n')) {
  try {
    template_ = std::make_unique<const jinja::Template>(source, option_);
  } catch (const UserError& error) {
    throw UserError(message_of(error), option_, "write a Jinja template over the columns, such as '{{question}}'");
  }
}

RowTemplate::~RowTemplate() = default;
RowTemplate::RowTemplate(RowTemplate&&) noexcept = default;
RowTemplate& RowTemplate::operator=(RowTemplate&&) noexcept = default;

std::string RowTemplate::render(const Json& row, const std::string& where) const {
  std::vector<std::pair<std::string, Value>> columns;
  std::string names;
  for (const auto& [name, item] : row.items()) {
    columns.emplace_back(name, value_of_column(item));
    names += (names.empty() ? "" : ", ") + name;
  }
  try {
    return template_->render(std::move(columns), {.strict = true}).text() + (ends_line_ ? "\n" : "");
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", option_, message_of(error)), where,
                    fmt::format("the columns of the row are {}", names));
  }
}

}  // namespace hone
