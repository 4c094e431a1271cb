// Closed sets of values that a configuration names: an enum, and one table of its names. The schema takes what it
// allows and what it reads from that table, and messages and files write the name. A table is beside its enum, or in
// config/choices.h if a configuration alone names the values.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace hone {

template <class Value>
struct ChoiceName {
  Value value;
  std::string_view name;
};

/// The table of a set, in the order of the documentation; a specialisation. A value without a row means that nothing is
/// stated.
template <class Value>
inline constexpr std::nullptr_t kChoiceNames = nullptr;

/// A type with such a table.
template <class Value>
concept NamedChoice = !std::same_as<decltype(kChoiceNames<Value>), const std::nullptr_t>;

/// The name that a configuration has for the value; "" for one that states nothing.
template <NamedChoice Value>
constexpr std::string_view name_of(const Value& value) {
  for (const ChoiceName<Value>& row : kChoiceNames<Value>) {
    if (row.value == value) return row.name;
  }
  return "";
}

template <NamedChoice Value>
std::vector<Value> all_choices() {
  std::vector<Value> values;
  for (const ChoiceName<Value>& row : kChoiceNames<Value>) values.push_back(row.value);
  return values;
}

template <class Value>
std::vector<std::string> names_of(const std::vector<Value>& values) {
  std::vector<std::string> names;
  for (const Value& value : values) names.emplace_back(name_of(value));
  return names;
}

/// The one of `values` that is called `name`, which must be the name of one.
template <class Value>
Value choice_called(std::string_view name, const std::vector<Value>& values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [&](const Value& value) { return name_of(value) == name; });
  HONE_ASSERT(found != values.end(), std::string(name));
  return *found;
}
template <NamedChoice Value>
Value choice_called(std::string_view name) {
  return choice_called(name, all_choices<Value>());
}
template <NamedChoice Value>
std::vector<Value> choices_called(const std::vector<std::string>& names) {
  std::vector<Value> values;
  for (const std::string& name : names) values.push_back(choice_called<Value>(name));
  return values;
}

/// A JSON value takes the name: without this it would take the number of an enum.
template <class AnyJson, NamedChoice Value>
void to_json(AnyJson& json, const Value& value) = delete;

}  // namespace hone

/// Messages show the name.
template <hone::NamedChoice Value>
struct fmt::formatter<Value, char> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const Value& value, Context& context) const {
    return fmt::formatter<std::string_view>::format(hone::name_of(value), context);
  }
};
