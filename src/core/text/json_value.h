// JsonValue: a Json that a struct in a header holds. The header needs no definition of Json.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/base/ordered_object.h"  // calls instantiate Json where the library is precompiled
#include "core/text/json_fwd.h"

namespace hone {

/// Owns a Json and behaves as its value: copying copies it, comparing compares it, and it converts to a const Json&.
/// Members that are not repeated here are reached by ->, in sources that include core/text/json.h. A moved-from value
/// is null.
class JsonValue {
 public:
  JsonValue() noexcept;  ///< null
  JsonValue(std::nullptr_t) noexcept;
  /// From a Json only: braces and other types would first have to become one, and {{"a", 1}} would be ambiguous.
  template <class Value>
  requires std::same_as<std::remove_cvref_t<Value>, Json> JsonValue(Value&& json)
      : JsonValue(Copied{}, std::forward<Value>(json)) {}
  JsonValue(const JsonValue& other);
  JsonValue(JsonValue&& other) noexcept;
  JsonValue& operator=(JsonValue other) noexcept;
  ~JsonValue();

  operator const Json&() const;
  const Json& operator*() const;
  Json& operator*();
  const Json* operator->() const;
  Json* operator->();

  // As in Json.
  bool is_null() const;
  bool is_object() const;
  bool empty() const;
  size_t size() const;
  bool contains(std::string_view key) const;
  const Json& at(std::string_view key) const;
  const Json& operator[](std::string_view key) const;
  Json& operator[](std::string_view key);
  const Json& operator[](size_t index) const;
  Json& operator[](size_t index);
  std::string dump() const;

  friend bool operator==(const JsonValue& a, const JsonValue& b);
  friend bool operator==(const JsonValue& a, const Json& b);

 private:
  struct Copied {};
  JsonValue(Copied, const Json& json);
  JsonValue(Copied, Json&& json);

  std::unique_ptr<Json> json_;  // null: the value is null
};

/// A JsonValue that is an empty object, or an empty array, until it is given another value.
class JsonObject : public JsonValue {
 public:
  JsonObject();
  using JsonValue::JsonValue;
};
class JsonArray : public JsonValue {
 public:
  JsonArray();
  using JsonValue::JsonValue;
};

}  // namespace hone
